"""Arrays of one element that convert to numbers, as all did in NumPy 1, for scripts of that time."""

from __future__ import annotations

from typing import Any

import numpy as np

_wanted = False


class OneElement(np.ndarray[Any, Any]):
    """An array for which `float`, `int` and `%f` work if it has one element."""

    def __float__(self) -> float:
        return float(self._only())

    def __int__(self) -> int:
        return int(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def _only(self) -> Any:
        if self.size != 1:
            raise TypeError("only arrays of one element can be converted to Python scalars")
        return self.item()


OneElement.__name__ = "array"  # as NumPy prints it


def want(wanted: bool) -> None:
    """Make sessions return such arrays from now on, or no more."""
    global _wanted
    _wanted = wanted


def fetched(array: np.ndarray[Any, Any]) -> Any:
    """Return what a script gets for an array: a NumPy scalar if it has no axes."""
    if array.ndim == 0:
        return array[()]
    return array.view(OneElement) if _wanted and array.size == 1 else array
