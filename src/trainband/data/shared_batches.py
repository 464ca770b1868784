"""The stream of batches of shared data, and its iterator, which reports trained examples to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from trainband.data.leases import LeaseAnswer, LeaseRequest, PieceLedger
from trainband.data.piece_batches import PieceBatches
from trainband.data.pieces import SourceSettings
from trainband.data.readers import Reader
from trainband.data.visits import Hold, Visits
from trainband.errors import DataError, TrainbandError
from trainband.runtime import SYSTEM, Runtime

Office = Callable[[LeaseRequest], LeaseAnswer]
"""Sends a lease request to the ledger and returns its answer."""

Say = Callable[[str], None]

_PAUSE_S = 0.05  # before a worker that must wait asks again
_SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class SharedReport:
    """Progress in shared data.

    Attributes:
      examples_visited: how many examples this worker has trained on.
      repeated: examples (files, for files) that may have been trained on more than once in the whole job, at most.
        0 unless a worker was lost.
    """

    examples_visited: int
    repeated: int


class SharedBatches:
    """An iterable of batches of shared data; made by `shared`.

    It is one stream for the whole job: a second iterator continues where the first was closed, and after the last epoch
    there is nothing left. Until it is bound to a job, it is a job of its own with one worker.
    """

    short_last = True
    """The last batch of the last epoch may have fewer examples."""
    once = True
    """Its end is the end of the data: it cannot restart, and may end at once for a worker that joins late."""

    def __init__(
        self, reader: Reader, settings: SourceSettings, *, batch_size: int, drop_remainder: bool, name: str
    ) -> None:
        self.name = name
        self.settings = settings
        self.batch_size = batch_size
        self.drop_remainder = drop_remainder
        self.say: Say | None = None
        self._reader = reader
        self._office: Office | None = None
        self.runtime: Runtime = SYSTEM
        self._lock = SYSTEM.lock()
        self._ledger = PieceLedger(settings)
        self._visited = 0
        self._repeated = 0
        self._ended = False

    def bind(self, office: Office, say: Say | None = None, runtime: Runtime = SYSTEM) -> None:
        """Binds this to a job.

        Args:
          office: sends a request to the job's ledger and returns its answer. If it raises, the request is sent again
            with the next batch.
          say: is told every 5 s which workers this worker waits for.
          runtime: this task's.
        """
        self._office = office
        self.say = say
        self.runtime = runtime

    def __iter__(self) -> SharedIterator:
        """Continues the stream.

        Raises:
          DataError: this object has already ended.
        """
        if self._ended:
            raise DataError(
                f"the shared data {self.name!r} has ended after {self.settings.epochs} epoch(s); "
                "ask for more epochs, or make another one with its own name."
            )
        return SharedIterator(self)

    @property
    def report(self) -> SharedReport:
        """The progress so far."""
        return SharedReport(self._visited, self._repeated)

    @property
    def alone(self) -> bool:
        """Whether it is not bound to a job."""
        return self._office is None

    def ask(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks the job's ledger, or its own; for `SharedIterator`."""
        if self._office is not None:
            answer = self._office(request)
        else:
            with self._lock:
                answer = self._ledger.lease(0, request)
        self._repeated = max(self._repeated, answer.repeated)
        return answer

    def new_batches(self) -> PieceBatches:
        """Makes a cutter of pieces into batches; for `SharedIterator`."""
        return PieceBatches(self._reader, self.settings, self.batch_size, self.name)

    def record(self) -> str | None:
        """Returns its own ledger as JSON, or None if the job has one."""
        if self._office is not None:
            return None
        with self._lock:
            return self._ledger.record()

    def restore(self, record: str | None) -> None:
        """Restores its own ledger from a record, unless the job has one.

        Raises:
          DataError: there is no record, or it is of other settings.
        """
        if self._office is not None:
            return
        if record is None:
            raise DataError(
                f"this position in the shared data {self.name!r} is that of one worker of a job, without those of the "
                "others; resume such a job, or start the data again."
            )
        ledger = PieceLedger.from_record(record)
        before = ledger.settings
        if not ledger.prolong(self.settings):
            raise DataError(
                f"this position in the shared data {self.name!r} is of other data: {before}, but now it is "
                f"{self.settings}."
            )
        with self._lock:
            self._ledger = ledger

    def visited(self, examples: int) -> None:
        """Counts examples that were trained on; for `SharedIterator`."""
        self._visited += examples

    def ended(self, over: bool) -> None:
        """Records whether the stream has ended; for `SharedIterator`."""
        self._ended = over


class SharedIterator(Iterator[Any]):
    """Iterator over shared data. `trained`, `get_state` and `close` may be called by another thread than `next`.

    A batch counts as trained on when it is returned, until `trained` is first called: from then on, calls decide.
    """

    pause: Callable[[float], object]
    """Waits this many seconds, or until this is closed; tests may replace it."""
    on_wait: Callable[[], None] | None
    """Called by the thread in `next` when there is no piece to train on but others' may come back."""

    _iterator: str
    _number: int  # of the next request
    _over: bool  # no piece will come
    _gone: bool  # the last report was sent
    _batches: PieceBatches
    _visits: Visits  # under the lock

    def __init__(self, owner: SharedBatches) -> None:
        """Sends no request yet."""
        self._owner = owner
        self._runtime = owner.runtime
        self._lock = self._runtime.recursive_lock()
        self._asking = self._runtime.lock()  # requests are sent one by one, because they are numbered
        self._closed = self._runtime.event()
        self.pause = self._closed.wait
        self.on_wait = None
        self._told = False
        self._start_iterator(Visits())

    def __next__(self) -> Any:
        """Returns the next batch.

        Raises:
          DataError: `load` returned what cannot be a batch, or other workers have other settings.
        """
        waited_s = 0.0
        while not self._closed.is_set():
            batch = self._next_made()
            if batch is not None:
                return batch[0]
            if not self._over:
                answer, hold = self._ask()
                if answer is None:
                    break
                if hold is not None:
                    self._batches.start_piece(hold)
                    continue
                self._over = answer.kind == "end"
                if not self._batches.rows and not self._over:
                    self._drop_rest()
                    self._wait(answer.holders, waited_s)
                    waited_s += _PAUSE_S
                    continue
            # There is no further piece, or none for now: the rest is returned, lest workers wait for each other.
            if self._batches.rows and not self._owner.drop_remainder:
                self._batches.make_short()
                continue
            self._drop_rest()
            if self._over:
                self._owner.ended(True)
                self._send_last_report()
                break
        raise StopIteration

    def trained(self, count: int) -> None:
        """Records that the first `count` batches of this iterator have been trained on."""
        with self._lock:
            self._told = True
            self._owner.visited(self._visits.trained(count))
        self._send_last_report()

    def get_state(self) -> dict[str, Any]:
        """Returns the training's position, in plain values; batches not trained on are read again."""
        # A piece from its own ledger must arrive before the state is taken; a job's ledger may be slow to answer.
        with self._asking if self._owner.alone else nullcontext(), self._lock:
            state = {**self._visits.state(), "visited": self._owner.report.examples_visited}
            if (record := self._owner.record()) is not None:
                state["ledger"] = record
            return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state.

        Without other workers, exactly the same batches follow. In a job, its ledger decides: examples that others have
        trained on since are not given.

        Raises:
          DataError: it is not a state of this data.
        """
        visits = Visits.from_state(state)
        try:
            visited = int(state["visited"])
        except (KeyError, TypeError, ValueError) as exc:
            raise DataError(f"this is not a position in shared data: {type(exc).__name__}: {exc}.") from exc
        self._owner.restore(state.get("ledger"))
        with self._lock:
            self._start_iterator(visits)
            self._owner.visited(visited - self._owner.report.examples_visited)
            self._owner.ended(False)

    def close(self) -> None:
        """Ends a wait, and gives back pieces that were not trained on. Idempotent."""
        self._closed.set()
        try:
            self._send_last_report()
        except TrainbandError:
            # The ledger cannot be reached, or has ended with the job; the lease expires anyway.
            return

    def _start_iterator(self, visits: Visits) -> None:
        """Begins another iterator, which has not been given a piece."""
        self._iterator = self._runtime.token(6)
        self._number = 1
        self._over = self._gone = False
        self._batches = self._owner.new_batches()
        self._visits = visits

    def _next_made(self) -> tuple[Any] | None:
        """Returns a batch if enough has been read for one."""
        try:
            batch = self._batches.next()
        except BaseException:
            self._closed.set()  # after an error of `load` the examples left out are unknown
            raise
        if batch is not None:
            with self._lock:
                self._visits.record_given(self._batches.pop_contents())
                if not self._told:
                    self._owner.visited(self._visits.trained_all())
        return batch

    def _drop_rest(self) -> None:
        """Drops the rows that will be in no batch."""
        with self._lock:
            self._visits.record_dropped(self._batches.drop_rest())

    def _wait(self, holders: Sequence[int], waited_s: float) -> None:
        """Waits briefly before the next request, and reports it from time to time."""
        if waited_s == 0 and self.on_wait is not None:
            self.on_wait()
        self.pause(_PAUSE_S)
        before, now = waited_s // _SAY_EVERY_S, (waited_s + _PAUSE_S) // _SAY_EVERY_S
        if now > before and self._owner.say is not None:
            names = ", ".join(map(str, holders))
            self._owner.say(
                f"waiting for worker number {names} to train on the last pieces of {self._owner.name!r}, which this "
                f"worker takes over if it is lost ({waited_s + _PAUSE_S:.0f} s)"
            )

    def _send_last_report(self) -> None:
        """Sends the last report if it is due and not yet sent."""
        with self._lock:
            done = self._over and self._batches.is_empty and not self._visits.awaited
            if self._gone or self._number == 1 or not (done or self._closed.is_set()):
                return
        self._ask(want=False)

    def _ask(self, want: bool = True) -> tuple[LeaseAnswer | None, Hold | None]:
        """Sends a report and maybe a request; returns the answer, None after the last report, and any new piece."""
        owner = self._owner
        with self._asking:
            if self._gone:
                return None, None
            with self._lock:
                finished, progress = self._visits.finished, self._visits.progress
                request = LeaseRequest(
                    owner.name, owner.settings, finished, progress, want, self._iterator, self._number
                )
            answer = owner.ask(request)
            with self._lock:
                self._number += 1
                self._gone = not want
                self._visits.reported(finished)
                if answer.kind != "piece":
                    return answer, None
                # At once under the lock: a state that is taken now must name it.
                begin = answer.piece * owner.settings.piece
                return answer, self._visits.receive((answer.epoch, answer.piece), begin, answer.start, answer.stop)
