"""Programs as bytes: what a coordinator exports, and what a server makes of it. StableHLO, never code of Python's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from trainband.compat.tf2.coordinator.records import Aval
from trainband.errors import ProtocolError
from trainband.ps.program.limits import GIB, MIB, ProgramLimits

PLATFORMS = ("cpu", "cuda")
"""Where closures can be computed."""
CLOSURE_LIMITS = ProgramLimits(
    program_bytes=256 * MIB, operations=2_000_000, tensor_bytes=16 * GIB, time_s=120.0, time_s_per_mib=20.0
)
"""For the check of a closure, whose running time is bounded only by the life of its coordinator."""
_lock = threading.Lock()


def exported(function: Callable[..., Sequence[Any]], avals: Sequence[Any], platform: str) -> bytes:
    """A function of arrays as bytes.

    Raises:
      NotImplementedError: it cannot be exported.
    """
    try:
        with jax.enable_x64(True):
            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in avals]
            return bytes(export.export(jax.jit(function), platforms=[platform])(*shapes).serialize())
    except Exception as exc:
        raise NotImplementedError(f"it cannot be exported: {exc}") from exc


class Program:
    """A program, as a `ProgramChecker` has written it. One here for the same bytes, so that it is compiled once."""

    def __init__(self, data: bytes) -> None:
        try:
            loaded = export.deserialize(bytearray(data))
        except Exception as exc:
            raise ProtocolError(
                f"a program cannot be loaded by JAX {jax.__version__} here ({exc}); install one version of JAX on all "
                "tasks."
            ) from exc
        self.takes = [Aval(tuple(one.shape), np.dtype(one.dtype).name) for one in loaded.in_avals]
        self.gives = [Aval(tuple(one.shape), np.dtype(one.dtype).name) for one in loaded.out_avals]
        self._run = jax.jit(loaded.call)
        is_for_here = jax.default_backend() in ("cpu", "gpu") and platform_here() in loaded.platforms
        self._device = None if is_for_here else jax.local_devices(backend="cpu")[0]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """What it gives, once it has been computed: the inputs are free for reuse."""
        with jax.enable_x64(True), jax.default_device(self._device):
            found: list[Any] = jax.block_until_ready(list(self._run(*inputs)))
        return found


def platform_here() -> str:
    """The platform that closures are computed on here, among `PLATFORMS`."""
    backend = jax.default_backend()
    found = {"gpu": "cuda"}.get(backend, backend)
    return found if found in PLATFORMS else "cpu"


@functools.lru_cache(maxsize=256)
def _loaded(data: bytes) -> Program:
    return Program(data)


def program_of(data: bytes) -> Program:
    """The program that these bytes are.

    Raises:
      ProtocolError: they are none.
    """
    with _lock:
        return _loaded(data)
