"""Keras's own evaluation and prediction, on all devices of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.model.batch_check import check_batch
from trainband.model.mesh_context import DATA
from trainband.spmd.batch_sharding import sharded_evenly
from trainband.strategies.base import Strategy
from trainband.strategies.mesh_strategy import MeshStrategy

Step = Callable[[Any, Iterator[Any]], Any]
"""Keras's function of a batch: (state, iterator of batches) -> (outputs, state)."""


class OnAllDevices:
    """Evaluates with the model on each device, and each batch split among them.

    Args:
      mesh: the devices.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._everywhere = NamedSharding(mesh, PartitionSpec())

    @classmethod
    def of(cls, strategy: Strategy) -> OnAllDevices | None:
        """Returns one for a strategy with several devices, all of this process."""
        if not isinstance(strategy, MeshStrategy) or strategy.cluster is not None:
            return None
        mesh = strategy.mesh()
        return cls(mesh) if mesh.shape.get(DATA, 1) > 1 else None

    def state(self, state: Any) -> Any:
        """Returns the model's values, on each device."""
        return jax.device_put(state, self._everywhere)

    def step(self, step: Step) -> Step:
        """Wraps Keras's function, to split its batches."""

        def call(state: Any, iterator: Iterator[Any]) -> Any:
            return step(state, (sharded_evenly(self._mesh, (DATA,), batch) for batch in iterator))

        return call


def with_checked_batches(step: Step, what: str) -> Step:
    """Wraps Keras's function, to refuse batches whose integers JAX would cut; `what` names the method in errors."""

    def checked(batch: Any) -> Any:
        check_batch(batch, f"{what}: the batch")
        return batch

    return lambda state, iterator: step(state, map(checked, iterator))
