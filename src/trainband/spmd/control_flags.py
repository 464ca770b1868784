"""ControlFlags: numbers that a process sends all others with a step."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.spmd.step_program import CONTROL_FLAGS


class ControlFlags:
    """Four numbers of each process that travel with the gradients and cost no exchange.

    If a call computes several steps, they go with the first.

    - The first means that the process cannot continue: from this step on, no step changes anything. If the data ends
      within a call, it goes with the call's first step that has no batch.
    - The second is the chief's: the number of steps until the next checkpoint. The others then leave their worker
      states or, if no process has all the values, give the chief their parts.
    - The third and fourth are also the chief's: which number of the optimizer's state changes from this step on, and
      its new value.

    Args:
      mesh: the devices of all processes.
      per_call: how many steps a call makes.
    """

    def __init__(self, mesh: Mesh, per_call: int) -> None:
        axes = mesh.axis_names
        self._where = NamedSharding(mesh, PartitionSpec(axes) if per_call == 1 else PartitionSpec(None, axes))
        self._shape = (per_call, len(mesh.local_devices), CONTROL_FLAGS)
        self._settings: dict[int, float] = {}
        self._said: tuple[float, ...] = ()
        self._array: jax.Array | None = None
        self.ends_at = 0
        """The step of the next call with which this process ends the training, if not the first."""

    def steer(self, settings: Mapping[int, float]) -> None:
        """Sends new values of numbers of the optimizer's state (counted from 1), one with each step."""
        self._settings.update(settings)

    def next(self, ends: float, saves: float) -> jax.Array:
        """Returns the flags for the next call, this process's part set; mostly the same as before."""
        which = next(iter(self._settings), 0)
        setting = which, self._settings.pop(which, 0.0)
        ends_at, self.ends_at = self.ends_at, 0
        said = (ends, saves, *setting, ends_at)
        if self._array is None or self._said != said:
            rows = np.zeros(self._shape, np.float32)
            rows[0, 0] = ends, saves, *setting
            if ends_at:
                rows[ends_at, 0, 0] = 1.0
            self._array = jax.make_array_from_process_local_data(self._where, rows if len(rows) > 1 else rows[0])
            self._said = said
        return self._array
