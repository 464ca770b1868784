"""The feed: batches for a training run, one after the other, checked, placed, and with a position to resume from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

from trainband.errors import DataError
from trainband.model.variables import PyTree
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.step_times import StepTimes
from trainband.train.data_cost import DataCost
from trainband.train.passes import Mark, Passes, Position
from trainband.train.portions import Portions
from trainband.train.read_ahead import ReadAhead
from trainband.train.step_batches import StepBatches

_AHEAD = 2  # the next batch, and one in reserve for a batch that takes longer
_GRACE_S = 5.0  # for an iterator that is reading when the feed is closed


class Feed(Iterator[PyTree]):
    """Iterator over a training run's batches; a context manager.

    If batches take long, a thread prepares the next ones while the training computes. It must be closed.

    Args:
      passes: the source of batches.
      accumulate, steps_per_execution: how many batches an item has, see `StepBatches`.
      ahead: how many items to prepare in a thread; 0 never. Default: 2 once an item is seen to take more than 0.2 ms
        and 5% of the time, or if its ids are to be known ahead; but never for the caller's own iterator, which
        would lose batches that are not trained on.
      idle: called, by the thread in `next`, when other tasks must act before the next batch can come (see
        `trainband.data.shared`): they must not wait for this one meanwhile.
      portions: combines batches into `Portion`s if an update rule decides the size of a step; excludes `accumulate`
        and `steps_per_execution`.
      times: records the time spent waiting for batches.
      runtime: this task's.
    """

    def __init__(
        self,
        passes: Passes,
        *,
        accumulate: int = 1,
        steps_per_execution: int = 1,
        ahead: int | None = None,
        idle: Callable[[], object] | None = None,
        portions: Portions | None = None,
        times: StepTimes | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Takes no batch yet."""
        self._passes = passes
        passes.must_last = accumulate > 1 or portions is not None
        passes.on_wait = idle
        self._batches = StepBatches(passes, accumulate, steps_per_execution)
        self._portions = portions
        self._idle = idle
        self._times = times or StepTimes()
        self._runtime = runtime
        self._last: tuple[Mark, ...] = ()  # of each step of the last item
        self._done: tuple[Mark, ...] = ()  # and of the last item that was trained on
        self.given: PyTree = None
        """The last item, until it was trained on."""
        self._ended = False
        self._cost = DataCost() if ahead is None else None
        self._reader = self._new_reader(ahead) if ahead else None

    def __next__(self) -> PyTree:
        """Returns the batches of the next step or steps.

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
                item, self._last = self._portions.next(self._next_item)
            now = self._runtime.clock()
            self._times.record("data", begin, now)
            if self._portions is not None:
                item.waited_s = now - begin
            self.given = item
            return item
        except BaseException:
            self._ended = True
            raise

    def _next_item(self) -> tuple[PyTree, tuple[Mark, ...]]:
        """Returns the next item, from the thread if there is one."""
        if self._reader is not None:
            return self._reader.get(self._idle)
        if self._cost is None:
            return self._batches.next()
        begin = self._runtime.clock()
        taken = self._batches.next()
        is_wanted = self._cost.is_high(begin, self._runtime.clock()) or self._passes.is_split
        if is_wanted and self._passes.can_read_ahead:
            self._reader = self._new_reader(_AHEAD)
            self._reader.start()
        return taken

    def trained(self, steps: int = 1) -> None:
        """Records that all items so far have been trained on; of the last one, the first `steps` steps."""
        self.given = None
        self._done = self._last[:steps] or self._done
        if self._done:
            self._passes.trained(self._done[-1])

    @property
    def position(self) -> Position:
        """Returns the position after the last batch that was trained on.

        Raises:
          DataError: the iterator's state is not one that can be saved.
        """
        return self.position_at(self._done[-1] if self._done else None)

    @property
    def marks(self) -> tuple[Mark | None, ...]:
        """Returns marks of the positions after each step of the last item, for `position_at`; at first, one of the
        start. Marks cost almost nothing; a position costs some microseconds.
        """
        if not self._done:
            return (None,)
        *before, last = self._done
        return *before, last[0].kept(last)

    def position_at(self, mark: Mark | None) -> Position:
        """Returns the position of a mark.

        Raises:
          DataError: the iterator's state is not one that can be saved.
        """
        return self._passes.position(mark)

    @property
    def reads_ahead(self) -> bool:
        """Whether a thread prepares the next items."""
        return self._reader is not None

    def close(self) -> None:
        """Ends the thread if there is one, and the iterator if the feed owns it. Idempotent."""
        self._ended = True
        if self._reader is not None:
            self._reader.stop()
            self._passes.end_wait()
            if not self._reader.join(_GRACE_S):
                return
        self._passes.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_reader(self, size: int) -> ReadAhead[tuple[PyTree, tuple[Mark, ...]]]:
        reader = ReadAhead(self._batches.next, size, self._runtime)
        self._passes.must_last = True
        self._passes.on_wait = reader.enqueue_idle  # earlier batches may not have been trained on yet
        return reader


def require_batches(batches: object, what: str) -> None:
    """Refuses a single batch in place of several, since its parts would be taken for batches.

    Raises:
      DataError: it is an array, a dict, or a tuple of arrays.
    """
    is_tuple = isinstance(batches, tuple) and bool(batches) and all(hasattr(one, "shape") for one in batches)
    if is_tuple or isinstance(batches, Mapping) or hasattr(batches, "shape"):
        kind = "a tuple of arrays" if is_tuple else "a dict" if isinstance(batches, Mapping) else "an array"
        raise DataError(
            f"{what}: the batches must be an iterable of batches, got {kind}, whose parts would each be taken for a "
            "batch; write [batch] for a single one, or cut arrays into batches with trainband.data.Batches(x, y, "
            "batch_size=...)."
        )
