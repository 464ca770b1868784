"""What a traced function captures: the variables that it reads and those that it assigns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainband.compat.tf2.eager.tensor import Tensor


class NotCaptured(Exception):
    """A trace has come to a variable that it does not know."""


class Capture:
    """Notes which variables are read and assigned."""

    def __init__(self) -> None:
        self.read: dict[int, Any] = {}
        """The variables that were read before they were assigned, by identity."""
        self.written: dict[int, Any] = {}
        """The variables that were assigned."""

    def value(self, variable: Any) -> Tensor | None:
        """The value of a variable; `None` where it is the variable's own."""
        if id(variable) not in self.written:
            self.read[id(variable)] = variable
        return None

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        """A variable is assigned. Returns whether the variable itself is to be left as it is."""
        del tensor
        self.written[id(variable)] = variable
        return False


class Trace(Capture):
    """Gives the variables that are known the values of a trace.

    Args:
      values: of the variables, by identity.
    """

    def __init__(self, values: dict[int, Tensor]) -> None:
        super().__init__()
        self.values = values

    def value(self, variable: Any) -> Tensor:
        if id(variable) not in self.values:
            raise NotCaptured
        return self.values[id(variable)]

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        super().assigned(variable, tensor)
        self.values[id(variable)] = tensor
        return True


class _Open(threading.local):
    def __init__(self) -> None:
        self.captures: list[Capture] = []


_open = _Open()


@contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Tells `capture` of what is read and assigned inside."""
    _open.captures.append(capture)
    try:
        yield
    finally:
        _open.captures.pop()


def is_tracing() -> bool:
    """Whether a function is being traced in this thread."""
    return any(isinstance(one, Trace) for one in _open.captures)


def value_of(variable: Any, own: Tensor) -> Tensor:
    """The value of a variable, whose own is `own`, in what is being captured."""
    found = own
    for capture in _open.captures:
        known = capture.value(variable)
        found = found if known is None else known
    return found


def is_kept(variable: Any, tensor: Tensor) -> bool:
    """Tells that a variable is assigned. Returns whether a trace keeps the value for itself."""
    return max([capture.assigned(variable, tensor) for capture in _open.captures], default=False)
