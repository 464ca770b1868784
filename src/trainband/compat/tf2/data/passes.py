"""A pass over a dataset, and the recipe that it follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.compat.closing import Closer
from trainband.compat.tf2.data.blocks import Blocks
from trainband.compat.tf2.eager.captured import NotCaptured, is_tracing
from trainband.compat.tf2.eager.seeds import numbers

INFINITE = -1
UNKNOWN = -2


class Pass(Closer):
    """One pass over a dataset: what it draws random numbers from, and what ends with it."""

    def __init__(self) -> None:
        if is_tracing():  # else its values would become constants of the trace
            raise NotCaptured
        super().__init__()
        self.base = int(np.asarray(numbers(1).array)) * 0x9E3779B1 % 2**32
        """Where the numbers of its random operations begin."""
        self.drawn = 0
        """How many functions draw from it."""
        self.job = ""
        """The id of the job whose workers divide the elements among them, and so need them in the same order."""


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
