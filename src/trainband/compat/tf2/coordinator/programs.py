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
from trainband.errors import ProtocolError, Refused
from trainband.ps.server.programs import inside
from trainband.ps.server.programs.limits import ProgramLimits
from trainband.ps.server.programs.operations import DTYPES
from trainband.ps.server.programs.signature import check_surroundings
from trainband.ps.server.programs.verifier import Verifier

PLATFORMS = ("cpu", "cuda")
_lock = threading.Lock()


def exported(function: Callable[..., Sequence[Any]], avals: Sequence[Any], platforms: Sequence[str]) -> bytes:
    """A function of arrays as bytes.

    Raises:
      NotImplementedError: it cannot be exported.
    """
    try:
        with jax.enable_x64(True):
            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in avals]
            return bytes(export.export(jax.jit(function), platforms=list(platforms))(*shapes).serialize())
    except Exception as exc:
        raise NotImplementedError(f"it cannot be exported: {exc}") from exc


class Program:
    """A program that came as bytes. One in this process for the same bytes, so that it is compiled once."""

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
        backend = jax.default_backend()
        is_for_here = {"gpu": "cuda"}.get(backend, backend) in loaded.platforms
        self._device = None if is_for_here else jax.local_devices(backend="cpu")[0]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """What it gives, once it has been computed: the inputs are free for reuse."""
        with jax.enable_x64(True), jax.default_device(self._device):
            found: list[Any] = jax.block_until_ready(list(self._run(*inputs)))
        return found


def verified(data: bytes, limits: ProgramLimits) -> bytes:
    """A program for updates, written anew from what has been verified: see `ps/server/programs`.

    Raises:
      Refused: it does what no update may do.
      ProtocolError: it cannot be read.
    """
    try:
        loaded = export.deserialize(bytearray(data))
        check_surroundings("update", loaded)
        takes = [_tensor(loaded.in_avals[i]) for i in loaded.module_kept_var_idx]
        gives = [_tensor(one) for one in loaded.out_avals]
        elements = sum(one.size for one in loaded.in_avals)
        with inside.module_of(loaded) as module:
            Verifier("update", module.operation, limits, elements, 8 * elements).check(takes, gives)
            return inside.canonical(loaded, module, "update")
    except Refused:
        raise
    except Exception as exc:
        raise ProtocolError(f"an update program cannot be read here: {exc}") from exc


def refuse_callbacks(data: bytes) -> None:
    """Raises `Refused` for a program that would call Python, which one from another process cannot mean."""
    try:
        loaded = export.deserialize(bytearray(data))
        with inside.module_of(loaded) as module:
            calls = inside.custom_calls(module)
    except Exception as exc:
        raise ProtocolError(f"a program cannot be read here: {exc}") from exc
    called = next((name for name in sorted(calls) if "callback" in name or "py" in name), None)
    if called is not None or loaded.ordered_effects or loaded.unordered_effects:
        raise Refused(f"it has effects ({called or 'such as printing'}), which programs of closures cannot have.")


def _tensor(aval: Any) -> tuple[tuple[int, ...], str]:
    name = np.dtype(aval.dtype).name
    if name not in DTYPES:
        raise Refused(f"it has arrays of {name}, which no update program may have.")
    return tuple(aval.shape), DTYPES[name]


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
