"""Decisions: where Python asks for the value of a tensor, to choose what it does next.

A function that is traced follows the decisions of a call that ran as it stands; its program is right for calls that
decide in the same way, which its guards tell.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

_OWN = str(Path(__file__).parent)

Place = tuple[CodeType, int]
"""Where in the script something is asked."""


class Decider(Protocol):
    """Who is told of decisions, and may make them."""

    def decide(self, tensor: Any, place: Place) -> Any:
        """The value of a tensor."""
        ...

    def runs(self, operation: str, inputs: Sequence[Any], place: Place) -> None:
        """An operation is to run."""
        ...

    def values_of(self, operation: str, inputs: Sequence[Any], place: Place) -> list[Any] | None:
        """The values of the inputs of an operation that must know them; `None` if nobody can say."""
        ...


class _Open(threading.local):
    def __init__(self) -> None:
        self.deciders: list[Decider] = []


OPEN = _Open()
"""The functions that are being run or traced in this thread."""


def decided(tensor: Any) -> Any:
    """The value of a tensor, as NumPy's, by which the script decides."""
    return OPEN.deciders[-1].decide(tensor, place_of_script()) if OPEN.deciders else tensor.numpy()


def place_of_script() -> Place:
    """Where the caller's caller was called from, outside of this folder."""
    frame = sys._getframe(2)  # noqa: SLF001 - there is no other way that is as quick
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti
