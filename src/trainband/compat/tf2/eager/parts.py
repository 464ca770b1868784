"""Parts of variables: a variable that is divided over parameter servers, as `layer.weights` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor

_PARTS = "_trainband_parts"


class VariablePart:
    """Some rows of a variable. Its value is read from the whole, and written into it.

    Attributes:
      whole: the variable.
    """

    def __init__(self, whole: Any, number: int, begin: int, end: int) -> None:
        self.whole = whole
        self._rows = slice(begin, end)
        name = str(getattr(whole, "path", whole.name)).partition(":")[0]
        self.name = f"{name}/part_{number}:0"
        self.path = f"{name}/part_{number}"

    @property
    def shape(self) -> TensorShape:
        """The sizes."""
        return TensorShape([self._rows.stop - self._rows.start, *convert(self.whole).aval[0][1:]])

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self.whole.dtype

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        return bool(self.whole.trainable)

    def value(self) -> Tensor:
        """The rows."""
        return convert(self.whole)[self._rows]

    __trainband_tensor__ = read_value = value

    def numpy(self) -> Any:
        """The rows as NumPy's."""
        return self.value().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.value().__array__(dtype, copy)

    def assign(self, value: Any) -> VariablePart:
        """Replaces the rows."""
        whole = np.array(self.whole.numpy())
        whole[self._rows] = np.asarray(value)
        self.whole.assign(whole)
        return self


def divide(variable: Any, rows: Sequence[tuple[int, int]]) -> None:
    """Notes which rows are a part of a variable each."""
    if rows:
        variable.__dict__[_PARTS] = [VariablePart(variable, number, *ends) for number, ends in enumerate(rows)]


def parts_of(variable: Any) -> list[Any]:
    """The parts of a variable; the variable itself, where it is not divided, or is a part."""
    return getattr(variable, "__dict__", {}).get(_PARTS) or [variable]


def wholes_of(variables: Sequence[Any]) -> list[Any]:
    """The variables to which parts belong, each once, in order."""
    found = {id(whole): whole for whole in (getattr(one, "whole", one) for one in variables)}
    return list(found.values())
