"""Run: one pass of an iterator over a dataset, and what belongs to it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from trainband.compat.closing import Closer
from trainband.compat.ops.dtypes import DType, array_of, as_dtype, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.datasets.elements import Elements, Spec
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, is_tensor, known_value

State = TypeVar("State")


class Recipe(Protocol):
    """A dataset, as far as functions and iterators see it."""

    inputs: tuple[Tensor, ...]
    """All tensors whose values must be known before a pass begins."""
    start: Callable[[Run], Elements]
    """Begins a pass."""

    @property
    def element_spec(self) -> Any:
        """What is known of the elements."""
        ...


class Source(NamedTuple):
    """What a dataset is made of: its structure, what begins a pass, the datasets and tensors that it takes from."""

    structure: Any
    start: Callable[[Run], Elements]
    parents: Sequence[Any] = ()
    inputs: Sequence[Tensor] = ()


class Run(Closer):
    """A pass over a dataset.

    Args:
      values: of the tensors that the dataset uses.
      resources: what lives as long as the session.
    """

    def __init__(self, values: Mapping[Tensor, Any], resources: dict[Any, Any]) -> None:
        self.values = dict(values)
        self.resources = resources
        self._states: dict[Any, Any] = {}
        super().__init__()

    def child(self, values: Mapping[Tensor, Any]) -> Run:
        """A pass over a dataset that belongs to one element of this one."""
        inner = Run({**self.values, **values}, self.resources)
        inner._closing = self._closing
        return inner

    def state(self, owner: Any, first: Callable[[], State]) -> State:
        """What one dataset keeps during the pass, such as how often it has begun again."""
        if owner not in self._states:
            self._states[owner] = first()
        found: State = self._states[owner]
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Input:
    """An array that a dataset uses: known from the beginning, or a tensor that is computed when the pass begins."""

    spec: Spec
    known: np.ndarray[Any, Any] | None
    tensor: Tensor | None

    @classmethod
    def make(cls, value: Any, dtype: DType | None = None) -> Input:
        """Return the input for a tensor, an array, or a Python value."""
        if isinstance(value, list) and any(map(is_tensor, value)):
            value = convert(value, dtype)
        if not is_tensor(value):
            array = array_of(value, dtype)
            array = array_of(array, string) if array.dtype == object else array
            return cls(Spec(as_dtype(array.dtype), TensorShape(array.shape)), array, None)
        tensor = convert(value, dtype)
        known = np.asarray(tensor.op.compute()[0]) if tensor.op.type == "Const" else known_value(tensor)
        return cls(Spec(tensor.dtype, tensor.shape), known, None if known is not None else tensor)

    def of(self, run: Run) -> Any:
        """The value in a pass."""
        return self.known if self.tensor is None else run.values[self.tensor]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensor, if it is one."""
        return [] if self.tensor is None else [self.tensor]


def tensors_of(inputs: Iterable[Input]) -> list[Tensor]:
    """The tensors among inputs."""
    return [tensor for one in inputs for tensor in one.tensors]
