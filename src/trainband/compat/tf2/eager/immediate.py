"""Immediate execution, for functions that run in threads of a pipeline: what they compute is not noted.

What the script's own thread notes must be the same from step to step, whatever a pipeline computes meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import Checked, noting
from trainband.compat.tf1.graphs.errors import InvalidArgumentError


class _Open(threading.local):
    depth = 0


_open = _Open()
_programs: dict[Any, tuple[Any, Checked]] = {}


def is_immediate() -> bool:
    """Whether this thread computes at once."""
    return _open.depth > 0


@contextmanager
def immediately() -> Iterator[None]:
    """Inside, this thread computes at once, on the CPU."""
    _open.depth += 1
    try:
        with jax.enable_x64(True), jax.default_device(cpu()), np.errstate(all="ignore"):
            yield
    finally:
        _open.depth -= 1


def cpu() -> Any:
    """JAX's CPU; `None` where JAX may not use it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def array_from(value: Any) -> Any:
    """The array of a result: of bytes, an array of objects."""
    if not isinstance(value, bytes):
        return np.asarray(value)
    box = np.empty((), object)
    box[()] = value
    return box


def results_of(kind: int, call: Callable[..., Sequence[Any]], arrays: Sequence[Any], folds: bool) -> list[Any]:
    """The results of a function of arrays, as NumPy's arrays.

    Args:
      kind: the number of the function.
      folds: whether NumPy can compute it.

    Raises:
      InvalidArgumentError: what an operation demands does not hold.
    """
    if folds:
        with noting(_refuse):
            return [array_from(one) for one in call(*map(np.asarray, arrays))]
    key = (kind, tuple((one.shape, np.dtype(one.dtype)) for one in arrays))
    if key not in _programs:
        checked = Checked(lambda *given: list(call(*given)))
        _programs[key] = jax.jit(checked), checked
    program, checked = _programs[key]
    with jax.ensure_compile_time_eval():  # all is known, also where JAX traces around this
        values, holds = program(*arrays)
    for condition, message in zip(holds, checked.messages, strict=True):
        _refuse(condition, message)
    return [np.asarray(one) for one in values]


def _refuse(holds: Any, message: str) -> None:
    if not bool(holds):
        raise InvalidArgumentError(None, None, message)
