"""A pass over a dataset, and the recipe that it follows."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainband.compat.tf2.data.blocks import Blocks
from trainband.compat.tf2.eager.captured import NotCaptured, is_tracing
from trainband.compat.tf2.eager.seeds import numbers

INFINITE = -1
UNKNOWN = -2


class Closing(Protocol):
    """Something that a pass ends."""

    def close(self) -> None:
        """Ends it. Idempotent."""
        ...


class Pass:
    """One pass over a dataset: what it draws random numbers from, and what ends with it."""

    def __init__(self) -> None:
        if is_tracing():  # else its values would become constants of the trace
            raise NotCaptured
        self._closing: weakref.WeakSet[Any] = weakref.WeakSet()
        self.base = int(np.asarray(numbers(1).array)) * 0x9E3779B1 % 2**32
        """Where the numbers of its random operations begin."""
        self.drawn = 0
        """How many functions draw from it."""

    def closes(self, thing: Closing) -> None:
        """Closes something at the end of the pass, or of the process."""
        self._closing.add(thing)
        _open.add(thing)

    def close(self) -> None:
        """Ends the pass. Idempotent."""
        for thing in list(self._closing):
            thing.close()


_open: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thing in list(_open):
        thing.close()


def _unknown() -> int:
    return UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How elements come about.

    Attributes:
      kind: what makes it, `batch` say.
      start: begins a pass.
      spec: gives what is known of the elements.
      count: gives how many there are, or `INFINITE` or `UNKNOWN`.
      is_cheap: whether elements only have to be fetched from memory.
    """

    kind: str
    start: Callable[[Pass], Blocks]
    spec: Callable[[], Any]
    count: Callable[[], int] = _unknown
    is_cheap: bool = False
