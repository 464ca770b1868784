"""What Python computes on the host, of text and files, and how it is parted from what is compiled.

The function that a script gives for elements often begins with text, and goes on with numbers. Its first run notes what
was asked of the host; a trace then gets the numbers that come of it as arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainband.compat.tf2.eager.captured import NotCaptured
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.immediate import array_from
from trainband.compat.tf2.eager.tensor import Tensor

HostFunction = Callable[..., Sequence[Any]]
"""Of arrays, to several."""


class HostTensor(Tensor):
    """A tensor that only the host's functions may look at.

    Args:
      value: of one element.
      place: its number among the values of the stage.
    """

    __slots__ = ("place",)

    def __init__(self, value: Any, place: int) -> None:
        super().__init__(value)
        self.place = place

    @property
    def is_traced(self) -> bool:
        return True

    @property
    def array(self) -> Any:
        raise NotCaptured

    @property
    def input(self) -> Any:
        raise NotCaptured


class Stage(Protocol):
    """Takes the calls of the host's functions in a thread."""

    def call(self, key: Any, function: HostFunction, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results of one."""
        ...


class _Open(threading.local):
    stage: Stage | None = None


_open = _Open()


@contextmanager
def hosting(stage: Stage) -> Iterator[None]:
    """Inside, a stage takes the calls of this thread."""
    before, _open.stage = _open.stage, stage
    try:
        yield
    finally:
        _open.stage = before


def computed(key: Any, function: HostFunction, values: Sequence[Any]) -> list[Tensor]:
    """The results of a function of arrays that Python computes.

    Args:
      key: what tells the function from others.
      values: what can become tensors.
    """
    tensors = [convert(value) for value in values]
    if _open.stage is not None:
        return _open.stage.call(key, function, tensors)
    if any(one.is_traced for one in tensors):
        raise NotCaptured
    return [Tensor(array_from(one)) for one in function(*(np.asarray(one.array) for one in tensors))]


def on_host(values: Sequence[Any]) -> bool:
    """Whether the host's functions are noted here, or something is traced."""
    return _open.stage is not None or any(convert(value).is_traced for value in values)


def raise_if_hosted() -> None:
    """Refuses a function that depends on more than its arguments, where the host's functions are noted.

    Raises:
      NotCaptured: they are.
    """
    if _open.stage is not None:
        raise NotCaptured


class Noted(NamedTuple):
    """A call that is noted.

    Attributes:
      first: the number of its first result among the values of the stage.
      size: how many it has.
    """

    key: Any
    function: HostFunction
    first: int
    size: int


class Noting:
    """Computes, and notes what is called.

    Args:
      leaves: of an element, the first values.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.values = list(leaves)
        self.calls: list[Noted] = []

    def tensors(self, count: int) -> list[Tensor]:
        """The leaves of the element."""
        return [self._tensor(place) for place in range(count)]

    def _tensor(self, place: int) -> Tensor:
        value = self.values[place]
        return HostTensor(value, place) if value.dtype == object else Tensor(value)

    def call(self, key: Any, function: HostFunction, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results."""
        arrays = [self.values[one.place] if isinstance(one, HostTensor) else np.asarray(one.array) for one in tensors]
        found = [array_from(one) for one in function(*arrays)]
        self.calls.append(Noted(key, function, len(self.values), len(found)))
        self.values += found
        return [self._tensor(place) for place in range(len(self.values) - len(found), len(self.values))]


class Step(NamedTuple):
    """A call of a host's function in the stage.

    Attributes:
      inputs: numbers of values, or arrays.
    """

    function: HostFunction
    inputs: list[Any]


class Replaying:
    """Gives, in a trace, the arguments that stand for what the host computes, and finds what that is computed of.

    Args:
      noted: what a run has noted.
      arrays: what stands for the values that are numbers, by place.
    """

    def __init__(self, noted: Noting, arrays: dict[int, Any]) -> None:
        self._noted, self._arrays = noted, arrays
        self.steps: list[Step] = []

    def tensor(self, place: int) -> Tensor:
        """That of a value."""
        if place in self._arrays:
            return Tensor(self._arrays[place])
        return HostTensor(self._noted.values[place], place)

    def call(self, key: Any, function: HostFunction, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results."""
        number = len(self.steps)
        if number >= len(self._noted.calls) or self._noted.calls[number].key != key:
            raise NotCaptured
        self.steps.append(Step(function, [self._place(one) for one in tensors]))
        noted = self._noted.calls[number]
        return [self.tensor(place) for place in range(noted.first, noted.first + noted.size)]

    def _place(self, tensor: Tensor) -> Any:
        if isinstance(tensor, HostTensor):
            return tensor.place
        if not tensor.is_traced:
            return np.asarray(tensor.array)
        found = next((place for place, array in self._arrays.items() if array is tensor.array), None)
        if found is None:  # it must be compiled before
            raise NotCaptured
        return found
