"""OneDevice: the strategy of one process and one device."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from trainband.model.mesh_context import DATA
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.strategies.devices import choose_device
from trainband.strategies.mesh_strategy import MeshStrategy


class OneDevice(MeshStrategy):
    """Trains in this process, on one device.

    Args:
      device: `cpu`, `gpu`, `gpu:1`, ..., or one of `jax.devices()`; by default an accelerator if JAX has one.
      standalone: whether this process trains alone although it is a task of a cluster, otherwise an error.
      strict: refuse to compute on the CPU in place of a requested device that does not exist.
      say: receives lines for people.
    """

    def __init__(
        self,
        device: str | jax.Device | None = None,
        *,
        standalone: bool = False,
        strict: bool = False,
        say: Say = say_on_stderr,
    ) -> None:
        super().__init__(say)
        self.standalone = standalone
        self._device = device
        self._strict = strict

    def _make_mesh(self) -> Mesh:
        device = choose_device(self._device, 0, "this process", self._say, strict=self._strict)
        return Mesh(np.array([device]), (DATA,))
