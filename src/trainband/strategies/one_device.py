"""OneDevice: the strategy of one process and one device."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from trainband.model.mesh_context import DATA
from trainband.model.model import Model
from trainband.ps.checkpointing import RestoreFrom
from trainband.spmd.engine import SpmdEngine
from trainband.strategies.devices import choose_device
from trainband.strategies.mesh_strategy import MeshStrategy
from trainband.wire.patience import Say, say_on_stderr


class OneDevice(MeshStrategy):
    """Trains in this process, on one device.

    Args:
      device: `cpu`, `gpu`, `gpu:1`, ..., or one of `jax.devices()`; by default an accelerator if JAX has one.
      strict: refuse to compute on the CPU where another device was asked for that is not there.
      say: where lines for people go.
    """

    def __init__(
        self, device: str | jax.Device | None = None, *, strict: bool = False, say: Say = say_on_stderr
    ) -> None:
        super().__init__(say)
        self._device = device
        self._strict = strict
        self._mesh: Mesh | None = None

    def mesh(self) -> Mesh:
        """See `MeshStrategy.mesh`."""
        if self._mesh is None:
            device = choose_device(self._device, 0, "this process", self._say, strict=self._strict)
            self._mesh = Mesh(np.array([device]), (DATA,))
        return self._mesh

    def start(self, model: Model, restore: RestoreFrom | None = None) -> SpmdEngine:
        """See `Strategy.start`."""
        return SpmdEngine(model, self.mesh(), restore=restore, say=self._say)
