"""Passes through batches, and positions in them to resume from."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec

from trainband.errors import DataError
from trainband.model.variables import PyTree

# A state is taken after each batch where that costs next to nothing (2 us for a Batches or grain's datasets); where it
# costs more (grain's DataLoader 60 us), so seldom that it takes 2% of the time, and a resumed feed skips the rest. With
# the attribute state_is_cheap it is not left to the clock: other workers can resume from a state, but not from a skip.
_CHEAP_S = 5e-6
_STATE_SHARE = 0.02

Snapshot = tuple[int, str | bytes | Exception]
"""A state of an iterator: after how many batches, and what."""

Mark = tuple["Pass", int, Snapshot | None]
"""A point in the batches: after so many of a pass, and the last state taken by then. (A class costs 0.3 us.)"""

to_text = json.JSONEncoder(check_circular=False).encode


class Position(msgspec.Struct, frozen=True):
    """How far a training is in its batches; a feed can resume from there.

    Attributes:
      passes: how often the iterable was begun anew.
      batches: how many it has given in this pass.
      state: what the iterator's own `get_state()` said; None if it has none.
      beyond: how many batches were given after the state was taken.
    """

    passes: int = 0
    batches: int = 0
    state: Any = None
    beyond: int = 0

    def to_json(self) -> str:
        """Gives it as text, for a checkpoint.

        Raises:
          DataError: the iterator's state holds what JSON cannot.
        """
        kind = "bytes" if isinstance(self.state, bytes) else "value"
        state = base64.b64encode(self.state).decode() if isinstance(self.state, bytes) else self.state
        record = {"passes": self.passes, "batches": self.batches, "beyond": self.beyond, "state": {kind: state}}
        try:
            return to_text(record)
        except (TypeError, ValueError) as exc:
            raise DataError(_unfit(exc)) from exc

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Reads what `to_json` gave.

        Raises:
          DataError: the text is something else.
        """
        try:
            record = json.loads(text)
            ((kind, state),) = record["state"].items()
            if kind == "bytes":
                state = base64.b64decode(state, validate=True)
            numbers = [record[name] for name in ("passes", "batches", "beyond")]
            if kind not in ("bytes", "value") or not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"state {kind!r}, numbers {numbers}")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error) as exc:
            raise DataError(f"this is no position in a training's batches: {type(exc).__name__}: {exc}.") from exc
        return cls(passes=numbers[0], batches=numbers[1], state=state, beyond=numbers[2])


class Pass:
    """One pass through the iterable."""

    def __init__(self, iterator: Iterator[PyTree], number: int, *, owned: bool, track: bool) -> None:
        self.iterator = iterator
        self.number = number
        self.owned = owned
        self.given = 0
        self.tells = callable(getattr(iterator, "trained", None))
        # An iterator that hears what was trained on gives its state as of then.
        self.says = track and self.tells and callable(getattr(iterator, "get_state", None))
        can_say = track and not self.tells and callable(getattr(iterator, "get_state", None))
        self.get_state: Callable[[], Any] | None = iterator.get_state if can_say else None  # type: ignore[attr-defined]
        self.snapshot: Snapshot | None = None
        self._track = track
        self._before = 0  # batches that another iterator gave, before the state that this one was set to
        self._every_time = bool(getattr(iterator, "state_is_cheap", False))
        self._looks = 0
        self._looked_at = 0.0
        self._cost_s = 1.0

    def look(self) -> None:
        """Takes the iterator's state, unless that takes too much of the time."""
        begin = perf_counter()
        costly = self._cost_s > _CHEAP_S and self._looks >= 3 and not self._every_time
        if costly and (begin - self._looked_at) * _STATE_SHARE < self._cost_s:
            return
        assert self.get_state is not None
        state = self.get_state()
        try:
            # As text at once: an iterator may go on with the very object that it gave.
            content: str | bytes | Exception = state if isinstance(state, bytes) else to_text(state)
        except (TypeError, ValueError) as exc:
            content = exc
        self.snapshot = self.given, content
        self._looked_at = perf_counter()
        self._looks += 1
        self._cost_s = min(self._cost_s, self._looked_at - begin)

    def tell(self, given: int) -> None:
        """Says which batches have been trained on."""
        self.iterator.trained(max(0, given - self._before))  # type: ignore[attr-defined]

    def position(self, mark: Mark) -> Position:
        """The position at a mark in this pass."""
        _, given, snapshot = mark
        if snapshot is None and self.says:
            return Position(self.number, given, self.iterator.get_state())  # type: ignore[attr-defined]
        if snapshot is None:
            return Position(self.number, given)
        at, content = snapshot
        if isinstance(content, Exception):
            raise DataError(_unfit(content)) from content
        return Position(self.number, given, content if isinstance(content, bytes) else json.loads(content), given - at)

    def go_to(self, position: Position) -> None:
        """Resumes from a position.

        Raises:
          DataError: the data has not so many batches.
        """
        self.number = position.passes
        skip = position.batches
        set_state = getattr(self.iterator, "set_state", None)
        if position.state is not None and callable(set_state):
            set_state(position.state)
            skip = position.beyond
            self._before = position.batches - skip
        for found in range(skip):
            try:
                next(self.iterator)
            except StopIteration:
                raise DataError(
                    f"the data ends after {self._before + found} batches, but the training was at batch "
                    f"{position.batches} of it; give the same data as before, or start the data anew."
                ) from None
        self.given = position.batches

    def close(self) -> None:
        """Closes the iterator, if it is not the caller's."""
        close = getattr(self.iterator, "close", None)
        if self.owned and callable(close):
            close()


def _unfit(exc: Exception) -> str:
    return (
        f"the state of the batches' iterator cannot be saved ({exc}); its get_state() must give bytes, or dicts, "
        "lists, numbers and strings."
    )
