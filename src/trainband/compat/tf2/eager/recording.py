"""What tapes of a thread are told: what is computed, and which variables are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trainband.compat.tf2.eager.tensor import Tensor


class Tape(Protocol):
    """Something that keeps what is computed."""

    def keep(
        self, kind: int, call: Callable[..., Sequence[Any]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Keeps a computation, if it is of something that is watched."""
        ...

    def saw(self, variable: Any, tensor: Tensor) -> None:
        """A variable was read."""
        ...


class _Open(threading.local):
    def __init__(self) -> None:
        self.tapes: list[Any] = []


OPEN = _Open()
"""The tapes that record in this thread."""


def record(kind: int, call: Callable[..., Sequence[Any]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Tells all tapes of this thread what has been computed."""
    tape: Tape
    for tape in OPEN.tapes:
        tape.keep(kind, call, inputs, outputs)


def variable_was_read(variable: Any, tensor: Tensor) -> None:
    """Tells all tapes of this thread that a variable was read."""
    tape: Tape
    for tape in OPEN.tapes:
        tape.saw(variable, tensor)
