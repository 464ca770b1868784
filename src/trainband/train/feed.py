"""The feed: batches for a training, one after the other, checked, placed, and with a position to go on from."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from types import TracebackType
from typing import Any

import jax
import msgspec
import numpy as np

from trainband.errors import DataError
from trainband.ps.variables import PyTree

_WINDOW = 20  # steps over which the cost of giving a batch is judged
_LEAST_COST_S = 0.0002  # handing a batch from one thread to another costs about a tenth of that
_LEAST_SHARE = 0.05
_AHEAD = 2  # the one being trained on next, and one for a batch that takes longer than most
_GRACE_S = 5.0  # for an iterator that is in the middle of reading when the feed is closed

# A state is taken after each batch where that costs next to nothing (2 us for a Batches or grain's datasets); where it
# costs more (grain's DataLoader 60 us), so seldom that it takes 2% of the time, and a resumed feed skips the rest. With
# the attribute state_is_cheap it is not left to the clock: other workers can go on from a state, but not from a skip.
_CHEAP_S = 5e-6
_STATE_SHARE = 0.02

_Snapshot = tuple[int, str | bytes | Exception]
"""A state of an iterator: after how many batches, and what."""

_Mark = tuple["_Pass", int, _Snapshot | None]
"""A point in the batches: after so many of a pass, and the last state taken by then. (A class costs 0.3 us.)"""

_to_json = json.JSONEncoder(check_circular=False).encode


class Position(msgspec.Struct, frozen=True):
    """How far a training is in its batches; a feed can go on from there.

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
            return _to_json(record)
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
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as exc:
            raise DataError(f"this is no position in a training's batches: {type(exc).__name__}: {exc}.") from exc
        return cls(passes=numbers[0], batches=numbers[1], state=state, beyond=numbers[2])


class Feed(Iterator[PyTree]):
    """Gives batches for as long as there are any; a context manager.

    Where giving a batch takes long, a thread gets ready the next ones while the training computes. It must be closed.

    Args:
      batches: any iterable. One that can be iterated afresh (a list, a loader) is one epoch; an iterator
        or generator is everything there is.
      repeat: start another epoch when one ends, where `batches` can be iterated afresh (and is not shared data).
      fixed_shapes: refuse a batch whose shapes or dtypes are not those of the first. Each new shape would be
        compiled anew, seconds of silence that nobody asked for. Of a source with the attribute `short_last`, a batch
        may have fewer examples.
      accumulate: if more than 1, tuples of so many batches come. What is left at the end is too little for one, and is
        left out.
      start: go on from this position.
      ahead: how many batches to get ready in a thread of its own; 0 never. When left out, 2 once it is seen that
        giving one takes more than 0.2 ms and 5% of the time; but never of an iterator that is the caller's own, who
        would miss those that nobody trained on.
      place: what to do with each batch, such as `jax.device_put`; in that thread, if there is one.
      task: of whom the batches are, for a note on an error of the iterable's own.
      track: whether a position will be asked for. If not, no state is taken.
      idle: is called, by the thread that is in `next`, when other tasks must do something before the next batch can
        come (see `trainband.data.shared`): they must not wait for this one meanwhile.
    """

    def __init__(
        self,
        batches: Iterable[PyTree],
        *,
        repeat: bool,
        fixed_shapes: bool,
        accumulate: int = 1,
        start: Position | None = None,
        ahead: int | None = None,
        place: Callable[[PyTree], PyTree] | None = None,
        task: str = "",
        track: bool = True,
        idle: Callable[[], None] | None = None,
    ) -> None:
        """Takes no batch yet."""
        self._batches = batches
        self._once = bool(getattr(batches, "once", False))
        self._repeat = repeat and not self._once
        self._shapes = _Shapes(bool(getattr(batches, "short_last", False))) if fixed_shapes else None
        self._accumulate = accumulate
        self._start = start
        self._place = place
        self._task = task
        self._track = track
        self._idle = idle
        self._number = 0  # batches that this feed was given
        self._begun = start is not None or self._once  # else it is an error if not even one comes
        self._pass: _Pass | None = None
        self._untold: deque[_Pass] = deque()  # passes that want to hear what was trained on
        self._last: _Mark | None = None  # of what was given last
        self._done: _Mark | None = None  # of what was trained on last
        self._ended = False
        self._watched = ahead is None
        self._steps = 0  # in this window
        self._since = self._cost_s = 0.0
        self._reader = _Reader(self._pull, ahead) if ahead else None

    def __next__(self) -> PyTree:
        """Gives what the next step trains on.

        Raises:
          DataError: there is no batch at all, or one of another shape than the first; or the data ends before `start`.
        """
        if self._ended:
            raise StopIteration
        try:
            if self._reader is not None:
                item, self._last = self._reader.get(self._idle)
            elif self._watched:
                begin = perf_counter()
                item, self._last = self._pull()
                end = perf_counter()
                self._cost_s += end - begin
                if self._steps == 0:
                    self._since = begin
                self._steps += 1
                if self._steps == _WINDOW:
                    self._judge(end)
            else:
                item, self._last = self._pull()
        except BaseException:
            self._ended = True
            raise
        return item

    def trained(self) -> None:
        """Says that all which was given so far has been trained on."""
        mark = self._done = self._last
        if mark is None or not self._untold:
            return
        current, given, _ = mark
        while self._untold[0] is not current:
            before = self._untold.popleft()
            before.tell(before.given)
        current.tell(given)

    @property
    def position(self) -> Position:
        """Where the training is, after what was trained on last.

        Raises:
          DataError: the iterator's state is not one that can be saved.
        """
        if self._done is None:
            return self._start or Position()
        return self._done[0].position(self._done)

    @property
    def reads_ahead(self) -> bool:
        """Whether a thread gets the next batches ready."""
        return self._reader is not None

    def close(self) -> None:
        """Ends the thread if there is one, and the iterator if it is the feed's own. Idempotent."""
        self._ended = True
        current = self._pass
        ended = True
        if self._reader is not None:
            self._reader.stop()
            if current is not None and current.tells:
                current.close()  # it may be waiting for others, and can be closed from here
            ended = self._reader.join(_GRACE_S)
            current = self._pass
        if current is not None and ended:
            current.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _judge(self, now: float) -> None:
        """Starts a thread if the last steps waited for batches too long."""
        slow = self._cost_s > _LEAST_COST_S * _WINDOW and self._cost_s > _LEAST_SHARE * (now - self._since)
        self._steps, self._cost_s = 0, 0.0
        if slow and self._pass is not None and self._pass.owned:
            self._reader = _Reader(self._pull, _AHEAD)
            self._reader.start()

    def _pull(self) -> tuple[PyTree, _Mark]:
        """Takes what the next step trains on out of the iterable."""
        if self._accumulate == 1:
            item = self._one()
        else:
            group: list[PyTree] = []
            while len(group) < self._accumulate:
                try:
                    group.append(self._one())
                except StopIteration:
                    if self._begun:
                        raise
                    raise DataError(
                        f"there are {len(group)} batches, too few for one step of accumulate={self._accumulate}; "
                        "use fewer."
                    ) from None
            self._begun = True
            item = tuple(group)
        current = self._pass
        assert current is not None
        return item, (current, current.given, current.snapshot)

    def _one(self) -> PyTree:
        """Takes one batch."""
        current = self._pass or self._begin()
        while True:
            try:
                batch = next(current.iterator)
            except StopIteration:
                current = self._turn(current)
                continue
            except Exception as exc:
                exc.add_note(f"raised by the data{f' of {self._task}' if self._task else ''}, batch {self._number}")
                raise
            if self._shapes is not None:
                self._shapes.check(batch, self._number)
            current.given += 1
            self._number += 1
            if current.get_state is not None:
                current.look()
            return batch if self._place is None else self._place(batch)

    def _begin(self) -> _Pass:
        """Begins the first pass, at the position asked for."""
        current = self._new_pass(0)
        if self._start is not None:
            current.go_to(self._start)
        return current

    def _turn(self, ended: _Pass) -> _Pass:
        """Begins the next pass.

        Raises:
          DataError: the one that ended had no batch.
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

    def _new_pass(self, number: int) -> _Pass:
        iterator = iter(self._batches)
        self._pass = current = _Pass(iterator, number, owned=iterator is not self._batches, track=self._track)
        if current.tells:
            self._untold.append(current)
            current.tell(0)
        if hasattr(iterator, "on_wait"):
            iterator.on_wait = self._on_wait
        return current

    def _on_wait(self) -> None:
        """The iterator waits for other tasks."""
        if self._reader is not None and self._reader.is_this_thread():
            self._reader.put_idle()  # in its place: there may be batches before it that have yet to be trained on
        elif self._idle is not None:
            self._idle()


class _Pass:
    """One pass through the iterable."""

    def __init__(self, iterator: Iterator[PyTree], number: int, *, owned: bool, track: bool) -> None:
        self.iterator = iterator
        self.number = number
        self.owned = owned
        self.given = 0
        self.tells = callable(getattr(iterator, "trained", None))
        # An iterator that hears what was trained on gives its state as of then, whenever it is asked.
        can_say = track and not self.tells and callable(getattr(iterator, "get_state", None))
        self.get_state: Callable[[], Any] | None = iterator.get_state if can_say else None  # type: ignore[attr-defined]
        self.snapshot: _Snapshot | None = None
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
            content: str | bytes | Exception = state if isinstance(state, bytes) else _to_json(state)
        except (TypeError, ValueError) as exc:
            content = exc
        self.snapshot = self.given, content
        self._looked_at = perf_counter()
        self._looks += 1
        self._cost_s = min(self._cost_s, self._looked_at - begin)

    def tell(self, given: int) -> None:
        """Says which batches have been trained on."""
        self.iterator.trained(max(0, given - self._before))  # type: ignore[attr-defined]

    def position(self, mark: _Mark) -> Position:
        """The position at a mark in this pass."""
        _, given, snapshot = mark
        if self.tells and self._track and callable(getattr(self.iterator, "get_state", None)):
            return Position(self.number, given, self.iterator.get_state())  # type: ignore[attr-defined]
        if snapshot is None:
            return Position(self.number, given)
        at, content = snapshot
        if isinstance(content, Exception):
            raise DataError(_unfit(content)) from content
        return Position(self.number, given, content if isinstance(content, bytes) else json.loads(content), given - at)

    def go_to(self, position: Position) -> None:
        """Goes on from a position.

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


class _Shapes:
    """The shapes of the first batch, which the others must have."""

    def __init__(self, shorter: bool) -> None:
        self._shorter = shorter
        self._first: list[tuple[tuple[int, ...], Any]] = []
        self._structure: Any = None
        self._kind: type | None = None
        self._keys: list[Any] | None = None
        self._quick: list[tuple[Any, tuple[int, ...], Any]] = []

    def check(self, batch: PyTree, number: int) -> None:
        """Compares a batch with the first.

        Raises:
          DataError: it is of another shape.
        """
        # Flattening costs 3 us, as much as everything else that is done with a batch here; most are alike at a glance.
        kind = type(batch)
        if kind is self._kind and (self._keys is None or list(batch) == self._keys):
            leaves = batch.values() if self._keys is not None else batch
            if len(leaves) == len(self._quick):
                for leaf, (leaf_kind, shape, dtype) in zip(leaves, self._quick, strict=True):
                    if type(leaf) is not leaf_kind or leaf.shape != shape or leaf.dtype is not dtype:
                        break
                else:
                    return
        self._compare(batch, number)

    def _compare(self, batch: PyTree, number: int) -> None:
        leaves, structure = jax.tree.flatten(batch)
        shapes = [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]
        if self._structure is None:
            self._first, self._structure = shapes, structure
            self._note(batch)
            return
        alike = structure == self._structure
        if alike and self._shorter:
            alike = all(_fits(a, b) for a, b in zip(self._first, shapes, strict=True))
        elif alike:
            alike = shapes == self._first
        if not alike:
            raise DataError(_difference(number, self._first, shapes))

    def _note(self, batch: PyTree) -> None:
        """Notes how to recognise a batch like this at a glance, if it is a flat one of arrays."""
        kind = type(batch)
        if kind is not tuple and kind is not dict:
            return
        parts = list(batch.values()) if kind is dict else list(batch)
        arrays = [part for part in parts if isinstance(part, np.ndarray | jax.Array)]
        if len(arrays) == len(parts):
            self._kind, self._keys = kind, list(batch) if kind is dict else None
            self._quick = [(type(array), array.shape, array.dtype) for array in arrays]


class _Reader:
    """A thread that gets items ready; it ends with the items, with an error, or when it is told to stop."""

    def __init__(self, pull: Callable[[], tuple[PyTree, _Mark]], size: int) -> None:
        self._pull: Callable[[], tuple[PyTree, _Mark]] | None = pull
        self._size = size
        self._changed = threading.Condition()
        self._items: deque[tuple[PyTree, _Mark] | BaseException | None] = deque()  # None: idle from here on
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="trainband-feed", daemon=True)

    def start(self) -> None:
        """Begins to read, unless it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def get(self, idle: Callable[[], None] | None) -> tuple[PyTree, _Mark]:
        """Waits for the next item; raises what was raised in the thread."""
        self.start()
        while True:
            with self._changed:
                while not self._items:
                    if self._stopped:
                        raise StopIteration  # closed from another thread
                    self._changed.wait()
                item = self._items.popleft()
                self._changed.notify_all()
            if isinstance(item, BaseException):
                self._thread.join()
                raise item
            if item is not None:
                return item
            if idle is not None:
                idle()

    def put_idle(self) -> None:
        """Lets the consumer know, when it has used up what is ready, that the next item will take a while."""
        self._put(None)

    def is_this_thread(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Asks the thread to end."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Waits for its end; returns whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        # The feed holds this object: a cycle would keep the iterator, and threads of its own, alive after both.
        pull, self._pull = self._pull, None
        assert pull is not None
        while True:
            with self._changed:
                while len(self._items) >= self._size and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
            try:
                item: Any = pull()
            except BaseException as exc:  # for the thread that asks, whatever it is
                self._put(exc)
                return
            self._put(item)
            del item  # the training may want its memory before the next one is ready

    def _put(self, item: tuple[PyTree, _Mark] | BaseException | None) -> None:
        with self._changed:
            if not self._stopped:
                self._items.append(item)
                self._changed.notify_all()


def _fits(first: tuple[tuple[int, ...], Any], then: tuple[tuple[int, ...], Any]) -> bool:
    (shape, dtype), (other, other_dtype) = first, then
    return dtype == other_dtype and len(shape) == len(other) and shape[1:] == other[1:] and other[:1] <= shape[:1]


def _unfit(exc: Exception) -> str:
    return (
        f"the state of the batches' iterator cannot be saved ({exc}); its get_state() must give bytes, or dicts, "
        "lists, numbers and strings."
    )


def _difference(
    number: int, first: list[tuple[tuple[int, ...], Any]], shapes: list[tuple[tuple[int, ...], Any]]
) -> str:
    advice = (
        "drop the last, shorter batch of an epoch, pad it, or pass Trainer(fixed_shapes=False) to have every new "
        "shape compiled"
    )
    if len(first) != len(shapes):
        return f"batch {number} has {len(shapes)} arrays, the first batch had {len(first)}; {advice}."
    for i, (a, b) in enumerate(zip(first, shapes, strict=True)):
        if a != b:
            return f"batch {number}: its array {i} is {_shown(b)}, in the first batch it was {_shown(a)}; {advice}."
    return f"batch {number} has another structure than the first; {advice}."


def _shown(shape: tuple[tuple[int, ...], Any]) -> str:
    return f"{shape[1]}{list(shape[0])}"
