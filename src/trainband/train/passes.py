"""Passes through batches, and positions in them to resume from."""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import msgspec

from trainband.errors import DataError
from trainband.model.batch import owned
from trainband.model.batch_check import check_batch
from trainband.model.variables import PyTree
from trainband.train.shapes import Shapes

# A state is taken after each batch if that costs next to nothing (2 us for a Batches or grain's datasets); if it costs
# more (grain's DataLoader 60 us), so rarely that it takes 2% of the time, and a resumed feed skips the rest. The
# attribute state_is_cheap overrides the clock: other workers can resume from a state, but not from a skip.
_CHEAP_S = 5e-6
_STATE_SHARE = 0.02

Snapshot = tuple[int, str | bytes | Exception]
"""The state of an iterator: (batches given by then, state)."""

Mark = tuple["Pass", int, Snapshot | None]
"""A point in the batches: a pass, its batches so far, and the last state by then. (A class costs 0.3 us.)"""

to_text = json.JSONEncoder(check_circular=False).encode


class Position(msgspec.Struct, frozen=True):
    """The position of a training run in its batches, from which a feed can resume.

    Attributes:
      passes: how often the iterable was restarted.
      batches: how many it has given in this pass.
      state: the result of the iterator's own `get_state()`; None if it has none.
      beyond: how many batches were given after the state was taken.
    """

    passes: int = 0
    batches: int = 0
    state: Any = None
    beyond: int = 0

    def to_json(self) -> str:
        """Returns it as text, for a checkpoint.

        Raises:
          DataError: JSON cannot hold the iterator's state.
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
        """Parses the result of `to_json`.

        Raises:
          DataError: the text is invalid.
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
            raise DataError(
                f"this is not a position in a training run's batches: {type(exc).__name__}: {exc}."
            ) from exc
        return cls(passes=numbers[0], batches=numbers[1], state=state, beyond=numbers[2])


class Pass:
    """One pass through the iterable."""

    def __init__(self, iterator: Iterator[PyTree], number: int, *, owned: bool, track: bool) -> None:
        self.iterator = iterator
        self.number = number
        self.owned = owned
        self.given = 0
        self.reports_trained = callable(getattr(iterator, "trained", None))
        # An iterator that is told which batches were trained on returns its state as of then.
        self.returns_trained_state = track and self.reports_trained and callable(getattr(iterator, "get_state", None))
        can_say = track and not self.reports_trained and callable(getattr(iterator, "get_state", None))
        self.get_state: Callable[[], Any] | None = iterator.get_state if can_say else None  # type: ignore[attr-defined]
        self.snapshot: Snapshot | None = None
        self._track = track
        self._before = 0  # batches of another iterator, before the state that this one resumed from
        self._every_time = bool(getattr(iterator, "state_is_cheap", False))
        self._saves = 0
        self._saved_at = 0.0
        self._cost_s = 1.0

    def save_state(self) -> None:
        """Takes the iterator's state, unless that takes too much of the time."""
        begin = perf_counter()
        costly = self._cost_s > _CHEAP_S and self._saves >= 3 and not self._every_time
        if costly and (begin - self._saved_at) * _STATE_SHARE < self._cost_s:
            return
        assert self.get_state is not None
        state = self.get_state()
        try:
            # As text at once: an iterator may continue to use the very object that it returned.
            content: str | bytes | Exception = state if isinstance(state, bytes) else to_text(state)
        except (TypeError, ValueError) as exc:
            content = exc
        self.snapshot = self.given, content
        self._saved_at = perf_counter()
        self._saves += 1
        self._cost_s = min(self._cost_s, self._saved_at - begin)

    def report_trained(self, given: int) -> None:
        """Tells the iterator which batches have been trained on."""
        self.iterator.trained(max(0, given - self._before))  # type: ignore[attr-defined]

    def kept(self, mark: Mark) -> Mark:
        """Returns a copy of the mark of the last trained batch that further steps do not change."""
        if not self.returns_trained_state:
            return mark
        # The iterator can only return its current state.
        return self, mark[1], (mark[1], to_text(self.iterator.get_state()))  # type: ignore[attr-defined]

    def position(self, mark: Mark) -> Position:
        """Returns the position of a mark in this pass."""
        _, given, snapshot = mark
        if snapshot is None and self.returns_trained_state:
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
          DataError: the data has fewer batches.
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
                    f"{position.batches} of it; pass the same data as before, or start the data again."
                ) from None
        self.given = position.batches

    def close(self) -> None:
        """Closes the iterator, unless the caller owns it."""
        close = getattr(self.iterator, "close", None)
        if self.owned and callable(close):
            close()


class Passes(Iterator[tuple[PyTree, Mark]]):
    """The batches of an iterable, checked and placed, each with a mark of its end, in as many passes as requested.

    Args:
      batches: any iterable. One that can be iterated again (a list, a loader) is one epoch; an iterator
        or generator is all of the data.
      repeat: start another epoch when one ends, if `batches` can be iterated again (and is not shared data).
      fixed_shapes: refuse a batch whose shapes or dtypes differ from the first. Each new shape would be
        compiled again, which takes seconds without any output. If a source has the attribute `short_last`, a batch
        may have fewer examples.
      start: resume from this position.
      split: takes what is not for the device out of each batch, before it is checked.
      place: what to do with each batch, such as `jax.device_put`.
      task: the task that the batches are for, for a note on an error of the iterable's own.
      track: whether a position will be requested. If not, no state is taken.
    """

    def __init__(
        self,
        batches: Iterable[PyTree],
        *,
        repeat: bool,
        fixed_shapes: bool,
        start: Position | None = None,
        split: Callable[[PyTree], PyTree] | None = None,
        place: Callable[[PyTree], PyTree] | None = None,
        task: str = "",
        track: bool = True,
    ) -> None:
        """Takes no batch yet."""
        self._batches = batches
        self._once = bool(getattr(batches, "once", False))
        self._repeat = repeat and not self._once
        self._shapes = Shapes(bool(getattr(batches, "short_last", False))) if fixed_shapes else None
        self._start = start
        self._split = split
        self._place = place
        self._task = task
        self._track = track
        self._number = 0  # batches given
        self._pass: Pass | None = None
        self._unreported: deque[Pass] = deque()  # passes to tell what was trained on
        self.may_be_empty = start is not None or self._once
        """Whether an empty iterable is not an error."""
        self.must_last = False
        """Whether a batch must not change when the iterable writes its next one into the same memory."""
        self.on_wait: Callable[[], object] | None = None
        """Called when the iterator waits for other tasks, by the thread in `next`."""

    def __next__(self) -> tuple[PyTree, Mark]:
        """Takes one batch.

        Raises:
          DataError: there is no batch at all, or one of another shape than the first; or the data ends before `start`.
        """
        current = self._pass or self._first_pass()
        while True:
            try:
                batch = next(current.iterator)
            except StopIteration:
                current = self._turn(current)
                continue
            except Exception as exc:
                exc.add_note(f"raised by the data{f' of {self._task}' if self._task else ''}, batch {self._number}")
                raise
            if self._split is not None:
                batch = self._split(batch)
            if self._shapes is not None:
                self._shapes.check(batch, self._number)
            check_batch(batch, f"batch {self._number}")
            current.given += 1
            self._number += 1
            if current.get_state is not None:
                current.save_state()
            if self._place is not None:
                batch = self._place(batch)
            elif self.must_last:
                batch = owned(batch)
            return batch, (current, current.given, current.snapshot)

    @property
    def is_split(self) -> bool:
        """Whether ids are taken out of the batches, which are then better known ahead."""
        return self._split is not None

    @property
    def can_read_ahead(self) -> bool:
        """Whether batches may be taken before they are needed: a caller's own iterator would lack them afterwards."""
        return self._pass is not None and self._pass.owned

    def trained(self, mark: Mark) -> None:
        """Records that all batches up to a mark have been trained on."""
        if not self._unreported:
            return
        current, given, _ = mark
        while self._unreported[0] is not current:
            before = self._unreported.popleft()
            before.report_trained(before.given)
        current.report_trained(given)

    def position(self, mark: Mark | None) -> Position:
        """Returns the position of a mark; the start if there is none.

        Raises:
          DataError: the iterator's state is not one that can be saved.
        """
        return (self._start or Position()) if mark is None else mark[0].position(mark)

    def end_wait(self) -> None:
        """Closes the iterator if it may be waiting for others, and can be closed by another thread."""
        if self._pass is not None and self._pass.reports_trained:
            self._pass.close()

    def close(self) -> None:
        """Closes the iterator unless the caller owns it."""
        if self._pass is not None:
            self._pass.close()

    def _first_pass(self) -> Pass:
        """Begins the first pass, at the given position."""
        current = self._new_pass(0)
        if self._start is not None:
            current.go_to(self._start)
        return current

    def _turn(self, ended: Pass) -> Pass:
        """Begins the next pass.

        Raises:
          DataError: the pass that ended had no batch.
          StopIteration: it was the last.
        """
        if ended.given == 0 and not self._once:
            raise DataError(
                "there are no batches to train on: the iterable is empty; check the data and the batch size."
            )
        if not self._repeat or not ended.owned:
            raise StopIteration
        ended.close()
        return self._new_pass(ended.number + 1)

    def _new_pass(self, number: int) -> Pass:
        iterator = iter(self._batches)
        self._pass = current = Pass(iterator, number, owned=iterator is not self._batches, track=self._track)
        if current.reports_trained:
            self._unreported.append(current)
            current.report_trained(0)
        if hasattr(iterator, "on_wait"):
            iterator.on_wait = self._wait
        return current

    def _wait(self) -> None:
        if self.on_wait is not None:
            self.on_wait()


def _unfit(exc: Exception) -> str:
    return (
        f"the state of the batches' iterator cannot be saved ({exc}); its get_state() must return bytes, or dicts, "
        "lists, numbers and strings."
    )
