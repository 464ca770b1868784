"""Checks: what operations demand of values that are known only while a compiled run computes, such as indices.

A front end that runs operations notes the conditions that they give to `check`, makes them results of its compiled
function, and raises when one does not hold. Where nobody notes them, such as while shapes are inferred, they are not
computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.arrays import is_computed, numpy_or_jax

Note = Callable[[Any, str], None]
NOWHERE = 2**31 - 1
"""The number of a row that is in another part of a divided table: it is left out, and passes `check_rows`."""


class _Open(threading.local):
    note: Note | None = None


_open = _Open()


@contextmanager
def noting(note: Note | None) -> Iterator[None]:
    """Passes on the checks that are made inside: the condition, a boolean scalar, and the message."""
    before, _open.note = _open.note, note
    try:
        yield
    finally:
        _open.note = before


def check(holds: Callable[[], Any], message: str) -> None:
    """Demand a condition, which is computed only if somebody notes it. One that is known to hold is left out."""
    if _open.note is None:
        return
    condition = holds()
    if is_computed(condition) or not bool(condition):
        _open.note(jnp.asarray(condition), message)


def check_range(indices: Any, size: int, what: str = "indices", least: int = 0) -> None:
    """Demand that whole numbers lie in [least, size)."""
    xp = numpy_or_jax(indices)

    def holds() -> Any:
        return xp.all((indices >= least) & (indices < size))

    check(holds, f"{what} are not all in [{least}, {size})")


def check_rows(rows: Any, size: int) -> None:
    """Demand that the numbers of rows lie in [0, size), or are `NOWHERE`."""
    check(lambda: ((rows >= 0) & ((rows < size) | (rows == NOWHERE))).all(), f"indices are not all in [0, {size})")


def refuse(message: str) -> None:
    """Make the run fail."""
    check(lambda: False, message)
