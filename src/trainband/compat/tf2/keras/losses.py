"""Losses and metrics of Keras on tensors, also those that a script defines itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import CompileMetrics, LossFunctionWrapper, MeanMetricWrapper, keras
from trainband.compat.tf2.keras.layers import is_of_keras
from trainband.compat.tf2.keras.lifting import (
    is_keras_own,
    leaves_of,
    lifted,
    numbers_as_tensors,
    of_tensors,
    on_subclass,
    plain,
    token,
)
from trainband.compat.tf2.keras.variables import inside, put


def _loss_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_keras_own(leaves_of((args, kwargs))):
            return original(self, *plain(args), **plain(kwargs))
        args = tuple(map(numbers_as_tensors, args))
        kwargs = {name: numbers_as_tensors(one) for name, one in kwargs.items()}
        return lifted(("loss", token(self)), lambda _, given: original(self, *given[0], **given[1]), [], (args, kwargs))

    return call


def _updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """`update_state` of a class of metrics."""
    if hasattr(original, "is_lifted"):
        return original

    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_keras_own(leaves_of((args, kwargs))):
            return original(self, *plain(args), **plain(kwargs))
        args = tuple(map(numbers_as_tensors, args))
        kwargs = {name: numbers_as_tensors(one) for name, one in kwargs.items()}

        def run(values: list[Any], given: Any) -> Any:
            return self.stateless_update_state(values, *given[0], **given[1])

        variables = self.variables
        new = lifted(("update", token(self), len(variables)), run, variables, (args, kwargs))
        put(variables, new)
        return None

    update_state.is_lifted = True  # type: ignore[attr-defined]
    return update_state


def _resulting(original: Callable[..., Any]) -> Callable[..., Any]:
    """`result` of a class of metrics."""
    if hasattr(original, "is_lifted"):
        return original

    @functools.wraps(original)
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        if inside():
            return plain(original(self, *args, **kwargs))
        variables = self.variables
        return lifted(
            ("result", token(self), len(variables)), lambda values, _: self.stateless_result(values), variables, ()
        )

    result.is_lifted = True  # type: ignore[attr-defined]
    return result


def _of_compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    """`result` of the metrics that a model is compiled with: there are none before the first batch."""

    def result(self: Any) -> Any:
        return original(self) if self.built else {}

    return result


def _reset(self: Any) -> None:
    if inside():
        for variable in self.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        return
    variables = self.variables
    put(variables, [Tensor(_zeros(tuple(variable.shape), str(variable.dtype))) for variable in variables])


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: str) -> Any:
    found = np.zeros(shape, dtype)
    found.flags.writeable = False
    return found


def adapt_metric(kind: Any) -> None:
    """Has a class of metrics work on tensors."""
    own = not is_of_keras(kind)
    update, result = kind.__dict__.get("update_state"), kind.__dict__.get("result")
    if inspect.isfunction(update):
        kind.update_state = _updating(of_tensors(update) if own else update)
    if inspect.isfunction(result):
        kind.result = _resulting(of_tensors(result) if own else result)
    reset = kind.__dict__.get("reset_states")
    if inspect.isfunction(reset) and "reset_state" not in kind.__dict__:
        kind.reset_state = reset


def adapt_loss(kind: Any) -> None:
    """Has a script's own class of losses work on tensors."""
    own = kind.__dict__.get("call")
    if inspect.isfunction(own):
        kind.call = of_tensors(own)


def _all_of(kind: type) -> list[type]:
    subclasses: list[type] = kind.__subclasses__()
    return [kind, *(deeper for one in subclasses for deeper in _all_of(one))]


def _of_script(original: Callable[..., Any]) -> Callable[..., Any]:
    """The `__init__` of what wraps a function: one of a script's is given tensors."""

    @functools.wraps(original)
    def init(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        original(self, fn if getattr(fn, "__module__", "").startswith("keras.") else of_tensors(fn), *args, **kwargs)

    return init


def _reduced(original: Callable[..., Any]) -> Callable[..., Any]:
    """The `__init__` of losses, which knows Keras 2's word for its own choice."""

    @functools.wraps(original)
    def init(self: Any, name: Any = None, reduction: Any = "sum_over_batch_size", **kwargs: Any) -> None:
        original(self, name=name, reduction="sum_over_batch_size" if reduction == "auto" else reduction, **kwargs)

    return init


def install() -> None:
    """Has Keras's losses and metrics take and give tensors."""
    keras.losses.Loss.__init__ = _reduced(keras.losses.Loss.__init__)
    keras.losses.Loss.__call__ = _loss_call(keras.losses.Loss.__call__)
    on_subclass(keras.losses.Loss, adapt_loss)
    metric = keras.metrics.Metric
    for kind in _all_of(metric):
        if kind is not CompileMetrics:
            adapt_metric(kind)
    plain_reset = metric.reset_state
    for kind in _all_of(metric):
        if kind.__dict__.get("reset_state") is plain_reset:
            kind.reset_state = _reset  # type: ignore[attr-defined]
    CompileMetrics.result = _of_compiled(CompileMetrics.result)
    metric.reset_states = lambda self: self.reset_state()
    on_subclass(metric, adapt_metric)
    for wrapper in (LossFunctionWrapper, MeanMetricWrapper):
        wrapper.__init__ = _of_script(wrapper.__init__)
