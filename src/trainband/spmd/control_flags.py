"""ControlFlags: what a process tells all others with a step."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainband.spmd.step_program import CONTROL_FLAGS


class ControlFlags:
    """Four numbers of each process that go with the gradients, and cost no exchange.

    Where several steps are computed in one call, they go with the first of them.

    - The first says that the process can go no further: no step changes anything from this one on. Where the data ends
      within a call, it goes with the call's first step that has no batch.
    - The second is the chief's: how many steps from now the next checkpoint is of. The others then leave their worker
      states or, where no process has all the values, give the chief their parts.
    - The third and fourth are the chief's too: which number of the optimizer's state is another one from this step on,
      and what.

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
        """With which step of the next call this process ends the training, if with one after the first."""

    def steer(self, settings: Mapping[int, float]) -> None:
        """Tells with the next steps, one with each, what these numbers of the optimizer's state are, from 1."""
        self._settings.update(settings)

    def next(self, ends: float, saves: float) -> jax.Array:
        """Those of this process for the next call, beside the others'; mostly the same as before."""
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
