"""A Keras model as pure functions for trainband to train."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from xxhash import xxh64

from trainband.keras.keras_internals import keras, layers_of, losses_and_updates, metrics_after
from trainband.keras.metrics import CONTRIBUTION, MetricLayout, Step
from trainband.model.model import Outputs
from trainband.model.variables import PyTree

Batch = tuple[Any, Any, Any]
"""(x, y, sample_weight); missing ones are `None`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's variables, by their names in a job.

    Attributes:
      trained: changed by gradients.
      changed: otherwise changed by a training step: averages of batch normalisation, the state of random streams.
      frozen: changed by no step, such as the weights of frozen layers; not part of the job.
    """

    trained: Mapping[str, Any]
    changed: Mapping[str, Any]
    frozen: tuple[Any, ...]

    @classmethod
    def of(cls, model: Any, batch: Batch) -> Parts:
        """Returns the parts of a built and compiled model; traces a step to find what it changes."""
        others = list(model.non_trainable_variables)
        trained = [variable.value for variable in model.trainable_variables]
        metrics = [variable.value for variable in model.metrics_variables]

        def after(values: list[Any], batch: Batch) -> list[Any]:
            return losses_and_updates(model, trained, values, metrics, batch)[3]

        jaxpr = jax.make_jaxpr(after)([variable.value for variable in others], batch).jaxpr
        is_changed = [out is not into for out, into in zip(jaxpr.outvars, jaxpr.invars, strict=False)]
        pairs = list(zip(others, is_changed, strict=True))
        return cls(
            trained=named(model.trainable_variables),
            changed=named([variable for variable, changed in pairs if changed]),
            frozen=tuple(variable for variable, changed in pairs if not changed),
        )


def named(variables: Sequence[Any]) -> dict[str, Any]:
    """Returns variables by their paths, in order; a repeated path gets a number."""
    found: dict[str, Any] = {}
    for variable in variables:
        path = name = "/".join(part for part in variable.path.split("/") if part not in ("", ".", ".."))
        number = 1
        while name in found:
            number += 1
            name = f"{path}_{number}"
        found[name] = variable
    return found


def metrics_of_step(model: Any, batch: Batch) -> Step:
    """Returns the effect of this batch on the metrics of a model in its current state."""
    trained = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]

    def step(metrics: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        _, unscaled, y_pred, _, after = losses_and_updates(model, trained, others, metrics, batch)
        return metrics_after(model, after, unscaled, y_pred, batch)

    return step


FROZEN = "digest_of_frozen"
"""Part of a job's state by which its tasks detect that their frozen values differ."""


def digest_of(model: Any, frozen: Sequence[Any]) -> Any:
    """Returns uint32[2] of frozen values, except random streams that nothing draws from; `None` without any."""
    seeds = {id(generator.state) for generator in seed_generators(model)}
    counted = [variable for variable in frozen if id(variable) not in seeds]
    if not counted:
        return None
    digest = xxh64()
    for variable in counted:
        digest.update(np.ascontiguousarray(variable.value).tobytes())
    return np.frombuffer(digest.digest(), np.uint32).copy()


class TrainingLoss:
    """`loss(params, state, batch, key)` of a Keras model, with regularisers, weights and metrics as Keras has them.

    Every metric's part of the batch, divided by the batch's examples, is the metric `CONTRIBUTION`: a mean over
    examples like the loss, however the batch is split; its sum is the value of Keras's own metric.

    Args:
      model: built and compiled.
      parts: its variables.
      layout: its metrics.
      rank: the worker's index, by which each draws its own random numbers: the first draws Keras's.
    """

    def __init__(self, model: Any, parts: Parts, layout: MetricLayout, rank: int = 0) -> None:
        self._model = model
        self._parts = parts
        self._layout = layout
        self._rank = rank
        # Their current values: they become constants of the compiled step.
        self._frozen = {id(variable): variable.value for variable in parts.frozen}
        self._order = list(model.non_trainable_variables)
        self._names = {id(variable): name for name, variable in parts.changed.items()}
        seeds = {id(generator.state) for generator in seed_generators(model)}
        self._seeds = {name for name, variable in parts.changed.items() if id(variable) in seeds}

    def with_state(self, params: PyTree, state: PyTree, batch: Batch, key: Any) -> Any:
        """Returns `(loss, (state, metrics))`."""
        del key  # Keras's random streams are part of the state
        digest = {name: value for name, value in state.items() if name == FROZEN}
        state = {name: self._own(name, value) for name, value in state.items()}
        values = [
            state[self._names[id(variable)]] if id(variable) in self._names else self._frozen[id(variable)]
            for variable in self._order
        ]
        trained = [params[name] for name in self._parts.trained]
        zero = self._layout.zero_values()
        loss, unscaled, y_pred, values, after = losses_and_updates(self._model, trained, values, zero, batch)
        after, logs = metrics_after(self._model, after, unscaled, y_pred, batch)
        examples = next(leaf for leaf in jax.tree.leaves(batch)).shape[0]
        after_state = {
            self._names[id(variable)]: value
            for variable, value in zip(self._order, values, strict=True)
            if id(variable) in self._names
        }
        after_state = {name: self._own(name, value) for name, value in after_state.items()} | digest
        return jnp.asarray(loss, jnp.float32), (
            after_state,
            Outputs({CONTRIBUTION: self._layout.packed(after, logs, examples)}),
        )

    def without_state(self, params: PyTree, batch: Batch) -> Any:
        """Returns `(loss, metrics)` of a model with no state besides its params."""
        loss, (_, metrics) = self.with_state(params, {}, batch, None)
        return loss, metrics

    def _own(self, name: str, value: Any) -> Any:
        """Converts a stream's state to this worker's, and back: removes the seed that distinguishes it."""
        if not self._rank or name not in self._seeds:
            return value
        return value ^ np.array([zlib.crc32(f"worker {self._rank}".encode()), 0], np.uint32)


def seed_generators(model: Any) -> list[Any]:
    """Returns the random streams of a model's layers."""
    found: list[Any] = []
    for layer in layers_of(model):
        found += getattr(layer, "_seed_generators", [])
        found += [value for value in vars(layer).values() if isinstance(value, keras.random.SeedGenerator)]
    return found
