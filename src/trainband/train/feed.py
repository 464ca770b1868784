"""The feed: batches for a training, one after the other, checked, placed, and with a position to resume from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from trainband.checkpoint.part import aligned_empty
from trainband.errors import DataError
from trainband.model.batch import Several, owned
from trainband.model.variables import PyTree
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.step_times import StepTimes
from trainband.train.passes import Mark, Pass, Position, to_text
from trainband.train.portions import Portions
from trainband.train.read_ahead import ReadAhead
from trainband.train.shapes import Shapes

_WINDOW = 20  # steps over which the cost of giving a batch is judged
_LEAST_COST_S = 0.0002  # handing a batch from one thread to another costs about a tenth of that
_LEAST_SHARE = 0.05
_AHEAD = 2  # the one being trained on next, and one for a batch that takes longer than most
_GRACE_S = 5.0  # for an iterator that is in the middle of reading when the feed is closed


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
      steps_per_execution: if more than 1, what so many steps train on comes at once, as `Several`; fewer where the data
        ends or its shape changes.
      start: resume from this position.
      ahead: how many batches to get ready in a thread of its own; 0 never. When left out, 2 once it is seen that
        giving one takes more than 0.2 ms and 5% of the time; but never of an iterator that is the caller's own, who
        would miss those that nobody trained on.
      place: what to do with each batch, such as `jax.device_put`; in that thread, if there is one.
      task: of whom the batches are, for a note on an error of the iterable's own.
      track: whether a position will be asked for. If not, no state is taken.
      idle: is called, by the thread that is in `next`, when other tasks must do something before the next batch can
        come (see `trainband.data.shared`): they must not wait for this one meanwhile.
      portions: makes of the batches what each step trains on, as `Portion`, where an update rule says how much that
        is; with neither `accumulate` nor `steps_per_execution`.
      times: where the waiting for batches is noted.
      runtime: this task's.
    """

    def __init__(
        self,
        batches: Iterable[PyTree],
        *,
        repeat: bool,
        fixed_shapes: bool,
        accumulate: int = 1,
        steps_per_execution: int = 1,
        start: Position | None = None,
        ahead: int | None = None,
        place: Callable[[PyTree], PyTree] | None = None,
        task: str = "",
        track: bool = True,
        idle: Callable[[], object] | None = None,
        portions: Portions | None = None,
        times: StepTimes | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Takes no batch yet."""
        self._times = times or StepTimes()
        self._portions = portions
        self._batches = batches
        self._once = bool(getattr(batches, "once", False))
        self._repeat = repeat and not self._once
        self._shapes = Shapes(bool(getattr(batches, "short_last", False))) if fixed_shapes else None
        self._accumulate = accumulate
        self._per_call = steps_per_execution
        self._held: tuple[PyTree, Mark] | None = None  # taken, and too different to go with those before it
        self._is_over = False  # nothing more is to be taken
        self._start = start
        self._place = place
        self._task = task
        self._track = track
        self._idle = idle
        self._runtime = runtime
        self._number = 0  # batches that this feed was given
        self._begun = start is not None or self._once  # else it is an error if not even one comes
        self._pass: Pass | None = None
        self._untold: deque[Pass] = deque()  # passes that want to hear what was trained on
        self._last: tuple[Mark, ...] = ()  # of each step's part of what was given last
        self._done: tuple[Mark, ...] = ()  # and of what was trained on last
        self._ended = False
        self._watched = ahead is None
        self._steps = 0  # in this window
        self._since = self._cost_s = self._most_s = 0.0
        self._reader = ReadAhead(self._pull, ahead, runtime) if ahead else None

    def __next__(self) -> PyTree:
        """Gives what the next step trains on, or the next ones.

        Raises:
          DataError: there is no batch at all, or one of another shape than the first; or the data ends before `start`.
        """
        if self._ended:
            raise StopIteration
        begin = self._runtime.clock()
        try:
            if self._portions is None:
                item, self._last = self._next_item()
            else:
                item, self._last = self._portions.take(self._next_item)
            now = self._runtime.clock()
            self._times.note("data", begin, now)
            if self._portions is not None:
                item.waited_s = now - begin
            return item
        except BaseException:
            self._ended = True
            raise

    def _next_item(self) -> tuple[PyTree, tuple[Mark, ...]]:
        """What comes next, from the thread that gets it ready if there is one."""
        if self._reader is not None:
            return self._reader.get(self._idle)
        if not self._watched:
            return self._pull()
        begin = self._runtime.clock()
        taken = self._pull()
        end = self._runtime.clock()
        self._cost_s += end - begin
        self._most_s = max(self._most_s, end - begin)
        if self._steps == 0:
            self._since = begin
        self._steps += 1
        if self._steps == _WINDOW:
            self._judge(end)
        return taken

    def trained(self, steps: int = 1) -> None:
        """Says that what was given so far has been trained on; of what was given last, the part of so many steps."""
        self._done = self._last[:steps] or self._done
        if not self._done or not self._untold:
            return
        current, given, _ = self._done[-1]
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
        return self.position_at(self._done[-1] if self._done else None)

    @property
    def marks(self) -> tuple[Mark | None, ...]:
        """Notes of where the training was after each step of what was given last, for `position_at`; at first, one of
        where it begins. They are next to free; a position costs some microseconds.
        """
        if not self._done:
            return (None,)
        *before, (current, given, _) = self._done
        if not current.says:
            return self._done
        # It can only say where it is now, and another step may come before this mark is used.
        return *before, (current, given, (given, to_text(current.iterator.get_state())))  # type: ignore[attr-defined]

    def position_at(self, mark: Mark | None) -> Position:
        """The position that a mark speaks of.

        Raises:
          DataError: the iterator's state is not one that can be saved.
        """
        return (self._start or Position()) if mark is None else mark[0].position(mark)

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
        """Starts a thread if the last steps waited for batches too long.

        The longest wait does not count: the first batch takes some preparation, and a busy machine stops anybody.
        """
        cost_s, most_s, all_s = self._cost_s - self._most_s, self._most_s, now - self._since
        slow = cost_s > _LEAST_COST_S * (_WINDOW - 1) and cost_s > _LEAST_SHARE * (all_s - most_s)
        self._steps, self._cost_s, self._most_s = 0, 0.0, 0.0
        if slow and self._pass is not None and self._pass.owned:
            self._reader = ReadAhead(self._pull, _AHEAD, self._runtime)
            self._reader.start()

    def _pull(self) -> tuple[PyTree, tuple[Mark, ...]]:
        """Takes what comes next out of the iterable."""
        if self._per_call == 1:
            item, mark = self._of_step()
            return item, (mark,)
        items: list[PyTree] = []
        marks: list[Mark] = []
        kind, stack = None, None
        while len(items) < self._per_call:
            try:
                if self._is_over:
                    raise StopIteration
                item, mark = self._held or self._of_step()
            except StopIteration:
                if not items:
                    raise
                self._is_over = True
                break
            self._held = None
            if not items:
                kind, stack = _kind(item), _stack_for(item, self._per_call)
            elif _kind(item) != kind:
                self._held = item, mark
                break
            items.append(owned(item) if stack is None else _put(item, stack, len(items)))
            marks.append(mark)
        if stack is not None:
            stack = jax.tree.map(lambda leaf: leaf[: len(items)], stack)
        return Several(tuple(items), self._is_over, stack), tuple(marks)

    def _of_step(self) -> tuple[PyTree, Mark]:
        """Takes what one step trains on out of the iterable."""
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
            if self._place is not None:
                return self._place(batch)
            # What waits for others must not change when the iterable writes its next one into the same memory.
            waits = self._accumulate > 1 or self._reader is not None or self._portions is not None
            return owned(batch) if waits else batch

    def _begin(self) -> Pass:
        """Begins the first pass, at the position asked for."""
        current = self._new_pass(0)
        if self._start is not None:
            current.go_to(self._start)
        return current

    def _turn(self, ended: Pass) -> Pass:
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

    def _new_pass(self, number: int) -> Pass:
        iterator = iter(self._batches)
        self._pass = current = Pass(iterator, number, owned=iterator is not self._batches, track=self._track)
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


def require_batches(batches: object, what: str) -> None:
    """Refuses one batch in the place of several, whose parts would be taken for batches.

    Raises:
      DataError: it is an array, a dict, or a tuple of arrays.
    """
    is_tuple = isinstance(batches, tuple) and bool(batches) and all(hasattr(one, "shape") for one in batches)
    if is_tuple or isinstance(batches, Mapping) or hasattr(batches, "shape"):
        kind = "a tuple of arrays" if is_tuple else "a dict" if isinstance(batches, Mapping) else "an array"
        raise DataError(
            f"{what}: the batches must be an iterable of batches, got {kind}, whose parts would each be taken for a "
            "batch: write [batch] for a single one, or cut the rows of arrays into batches by "
            "trainband.data.Batches(x, y, batch_size=...)."
        )


def _kind(item: PyTree) -> Any:
    """What two must have in common to be computed by one program."""
    leaves, structure = jax.tree.flatten(item)
    return structure, [(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves]


def _stack_for(item: PyTree, count: int) -> PyTree:
    """Room for so many like this one, if all its arrays are NumPy's."""
    leaves = jax.tree.leaves(item)
    if any(type(leaf) is not np.ndarray or leaf.dtype.hasobject for leaf in leaves):
        return None
    return jax.tree.map(lambda leaf: aligned_empty((count, *leaf.shape), leaf.dtype), item)


def _put(item: PyTree, stack: PyTree, index: int) -> PyTree:
    """The item, copied to its place."""
    for room, leaf in zip(jax.tree.leaves(stack), jax.tree.leaves(item), strict=True):
        room[index] = leaf
    return jax.tree.map(lambda room: room[index], stack)
