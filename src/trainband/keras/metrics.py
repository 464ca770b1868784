"""Keras's metrics over a training run, summed from each step's contribution."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

CONTRIBUTION = "keras"
"""The name under which a step returns its batch's contribution to all metrics."""

FOLD_AT = 256
"""Steps whose contributions are kept before they are summed: by then they have long been computed."""


Step = Callable[[list[Any]], tuple[list[Any], dict[str, Any]]]
"""The metrics' values after a batch, from those before, and what `compute_metrics` returned; traceable."""


class MetricLayout:
    """Layout of a step's contribution to a model's metrics in one vector.

    Keras's metrics are sums: the change by a batch does not depend on earlier values. A user's metric may differ, for
    example keep the largest value; the vector then holds its result for each batch alone, and its mean over the batches
    is shown.

    Args:
      model: compiled, its metrics built.
      step: of an example of the batches to train on.
    """

    def __init__(self, model: Any, step: Step) -> None:
        model.reset_metrics()
        self.variables = list(model.metrics_variables)
        self._zero = [np.asarray(variable.value) for variable in self.variables]
        self._sizes = [math.prod(variable.shape) for variable in self.variables]
        self._result_of = model.get_metrics_result
        self._apart = _that_do_not_add_up(model, self.variables, self._zero, step)
        apart = {id(variable) for metric in self._apart for variable in metric.variables}
        self._adds_up = [id(variable) not in apart for variable in self.variables]
        logs = jax.eval_shape(lambda values: step(values)[1], self._zero)
        means = jax.eval_shape(self._single, self._zero)
        shown = jax.eval_shape(self._shown, self._zero, means)
        self._logs = list(logs)
        self._added = [name for name in logs if name not in shown]
        self._means_tree = jax.tree.structure(means)
        self._means_shapes = [leaf.shape for leaf in jax.tree.leaves(means)]
        # Compiled now: later, another Keras thread may read it while an evaluation uses the metrics.
        self._results = jax.jit(self._shown).lower(self._zero, means).compile()

    @property
    def not_added_up(self) -> tuple[str, ...]:
        """The metrics shown as their mean over the batches."""
        return tuple(metric.name for metric in self._apart)

    @property
    def size(self) -> int:
        """Number of values in the vector."""
        means = sum(math.prod(shape) for shape in self._means_shapes)
        return int(sum(self._sizes) + means + len(self._added) + 1)

    def zero_values(self) -> list[Any]:
        """The variables' values after a reset."""
        return list(self._zero)

    def packed(self, values: list[Any], logs: Mapping[str, Any], examples: int) -> jax.Array:
        """Returns a batch's contribution per example, float32[size]; traceable.

        Args:
          values: the variables' values after this batch alone.
          logs: what `compute_metrics` returned.
          examples: in the batch.
        """
        sums = [
            jnp.ravel(jnp.asarray(value, jnp.float32) - jnp.asarray(zero, jnp.float32)) / examples
            if adds_up
            else jnp.zeros(zero.size)
            for value, zero, adds_up in zip(values, self._zero, self._adds_up, strict=True)
        ]
        means = [jnp.ravel(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(self._single(values))]
        added = [jnp.mean(jnp.asarray(logs[name], jnp.float32))[None] for name in self._added]
        return jnp.concatenate([*sums, *means, *added, jnp.ones(1)])

    def unpacked(self, total: NDArray[np.float64]) -> list[NDArray[Any]]:
        """Returns the variables' values at this distance from those after a reset, in their dtypes."""
        ends = np.cumsum(self._sizes)
        return [
            (zero.astype(np.float64) + part.reshape(zero.shape)).astype(zero.dtype)
            for zero, part in zip(self._zero, np.split(total, ends)[:-1], strict=True)
        ]

    def results(self, total: NDArray[np.float64], last: NDArray[np.float64]) -> dict[str, Any]:
        """Returns the logs that Keras shows.

        Args:
          total: the sum of all batches' contributions.
          last: the last contribution.
        """
        means = total[sum(self._sizes) :] / max(1.0, total[-1])
        leaves = []
        for shape in self._means_shapes:
            leaves.append(means[: math.prod(shape)].astype(np.float32).reshape(shape))
            means = means[math.prod(shape) :]
        shown = self._results(self.unpacked(total), jax.tree.unflatten(self._means_tree, leaves))
        found = {name: np.asarray(value) for name, value in shown.items()}
        # As in Keras: logs that compute_metrics adds are of the last batch.
        extra = dict(zip(self._added, last[-1 - len(self._added) : -1] / max(1.0, last[-1]), strict=True))
        return {name: np.float32(extra[name]) if name in extra else found[name] for name in self._logs}

    def _single(self, values: list[Any]) -> list[Any]:
        """Returns the results of the metrics shown as means."""
        with scope_of(zip(self.variables, values, strict=True)):
            return [metric.result() for metric in self._apart]

    def _shown(self, values: list[Any], means: list[Any]) -> dict[str, Any]:
        """Returns the model's own metric results, some replaced by these."""
        with ExitStack() as stack:
            stack.enter_context(scope_of(zip(self.variables, values, strict=True)))
            for metric, mean in zip(self._apart, means, strict=True):
                object.__setattr__(metric, "result", partial(_same, mean))
                stack.callback(object.__delattr__, metric, "result")
            return dict(self._result_of())


def _same(value: Any) -> Any:
    return value


def _that_do_not_add_up(model: Any, variables: list[Any], zero: list[Any], step: Step) -> list[Any]:
    """Returns the user's metrics whose change by a batch depends on earlier values."""
    foreign = [metric for metric in _leaves(model.metrics) if not _is_keras(type(metric).update_state)]
    if not foreign:
        return []
    owner = {id(variable): i for i, metric in enumerate(foreign) for variable in metric.variables}
    owners = [owner.get(id(variable)) for variable in variables]

    @jax.jit
    def change(values: list[Any]) -> list[Any]:
        return [jnp.asarray(new, jnp.float32) - old for new, old in zip(step(values)[0], values, strict=True)]

    def moved(by: list[Any]) -> list[Any]:
        pairs = zip(zero, by, owners, strict=True)
        with np.errstate(invalid="ignore"):  # a minimum may start at infinity
            return [value if i is None else (value + np.asarray(more)).astype(value.dtype) for value, more, i in pairs]

    first = change(zero)
    found = set()
    for begin in (first, [np.ones(())] * len(zero), [np.full((), -2.0)] * len(zero)):
        for i, one, other in zip(owners, first, change(moved(begin)), strict=True):
            if i is not None and not np.allclose(one, other, rtol=1e-3, atol=1e-4):
                found.add(i)
    return [foreign[i] for i in sorted(found)]


def _leaves(metrics: Sequence[Any]) -> Iterator[Any]:
    """Yields all metrics, including those that Keras groups in one."""
    for metric in metrics:
        inner = getattr(metric, "metrics", None) if _is_keras(type(metric).update_state) else None
        if inner:
            yield from _leaves(inner)
        else:
            yield metric


def _is_keras(function: Any) -> bool:
    return str(function.__module__).split(".")[0] == "keras"


def scope_of(mapping: Any) -> Any:
    """Returns a context in which Keras's variables have these values."""
    from trainband.keras.keras_internals import keras

    return keras.StatelessScope(state_mapping=list(mapping))


class RunningMetrics:
    """The metrics of an epoch so far, summed on demand, in double precision.

    Thread-safe: Keras runs its own callbacks in a thread beside the training.
    """

    def __init__(self, layout: MetricLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Clears the sums at the start of an epoch."""
        with self._lock:
            self._pending: list[tuple[Any, int]] = []
            self._total = np.zeros(self._layout.size, np.float64)
            self._last = np.zeros(self._layout.size, np.float64)

    def add(self, contribution: Any, examples: int) -> None:
        """Adds the contribution of a batch with this many examples."""
        with self._lock:
            self._pending.append((contribution, examples))
            if len(self._pending) >= 2 * FOLD_AT:
                self._fold(FOLD_AT)

    def _fold(self, count: int) -> None:
        for contribution, examples in self._pending[:count]:
            self._last = np.asarray(contribution, np.float64) * examples
            self._total += self._last
        del self._pending[:count]

    def results(self) -> dict[str, Any]:
        """Returns every metric's result, by name."""
        with self._lock:
            self._fold(len(self._pending))
            total, last = self._total.copy(), self._last
        return self._layout.results(total, last)

    def write(self) -> None:
        """Writes the values to Keras's own metrics."""
        with self._lock:
            self._fold(len(self._pending))
            total = self._total.copy()
        for variable, value in zip(self._layout.variables, self._layout.unpacked(total), strict=True):
            variable.assign(value)


class LazyLogs(Mapping[str, Any]):
    """A step's logs, computed on access: most callbacks do not read them."""

    def __init__(self, results: Callable[[], dict[str, Any]]) -> None:
        self._compute = results
        self._found: dict[str, Any] | None = None

    @property
    def _there(self) -> dict[str, Any]:
        if self._found is None:
            self._found = self._compute()
        return self._found

    def __getitem__(self, key: str) -> Any:
        return self._there[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._there)

    def __len__(self) -> int:
        return len(self._there)
