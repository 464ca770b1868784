"""Checks: what operations demand of values that are known only while a compiled run computes, such as indices.

A front end that runs operations notes the conditions that they give to `check`, makes them results of its compiled
function, and raises when one does not hold. Where nobody notes them, such as while shapes are inferred, they are not
computed.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import is_computed, numpy_or_jax

Note = Callable[[Any, str], None]
_NUMBERS: dict[str, int] = {}
"""The numbers of messages, from 1 on."""
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


class Checked:
    """A function that also returns the conditions that operations give to `check` while it is traced.

    Attributes:
      messages: of the conditions, in the same order. They are known once the function has been traced.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.messages: list[str] = []

    def __call__(self, *arguments: Any) -> tuple[Any, list[Any]]:
        conditions: list[Any] = []
        self.messages = []

        def note(condition: Any, message: str) -> None:
            conditions.append(condition)
            self.messages.append(message)

        with noting(note):
            return self._function(*arguments), conditions

    def numbered(self, *arguments: Any) -> tuple[Any, Any]:
        """The result, and 0 or the number of a message whose condition does not hold: see `check_number`.

        A branch or the body of a loop returns this number, since its conditions have no values outside of it.
        """
        result, conditions = self(*arguments)
        number = jnp.int32(0)
        for condition, message in zip(reversed(conditions), reversed(self.messages), strict=True):
            number = jnp.where(condition, number, np.int32(_NUMBERS.setdefault(message, len(_NUMBERS) + 1)))
        return result, number


def check_number(number: Any, *of: Checked) -> None:
    """Demand the conditions that some functions have turned into a number."""
    for message in dict.fromkeys(message for one in of for message in one.messages):
        check(functools.partial(operator.ne, number, np.int32(_NUMBERS[message])), message)


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
