"""The stream of batches of shared data, and its iterator, which reports to the ledger what has been trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data.batches import epoch_order
from trainband.data.leases import LeaseAnswer, LeaseRequest, Piece, PieceLedger, SourceSettings
from trainband.data.readers import Chunk, Reader, Rows, cut
from trainband.errors import DataError, TrainbandError
from trainband.runtime import SYSTEM, Runtime

Office = Callable[[LeaseRequest], LeaseAnswer]
"""Where pieces are asked for."""

Say = Callable[[str], None]

_PAUSE_S = 0.05  # before a worker that was told to wait asks again
_SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class SharedReport:
    """What became of shared data.

    Attributes:
      examples_visited: that this worker has trained on.
      repeated: examples (files, for files) that may have been trained on more than once, in the whole job and at most.
        0 unless a worker was lost.
    """

    examples_visited: int
    repeated: int


class SharedBatches:
    """An iterable of batches of shared data; made by `shared`.

    It is one stream for the whole job: a second iterator goes on where the first was closed, and after the last epoch
    there is nothing more. Until it is bound to a job, it is a job of its own with one worker.
    """

    short_last = True
    """A batch at the end of the last epoch may have fewer examples."""
    once = True
    """Its end is the end of the data: it cannot be begun anew, and may come at once for a worker that joins late."""

    def __init__(
        self, reader: Reader, settings: SourceSettings, *, batch_size: int, drop_remainder: bool, name: str
    ) -> None:
        """See `shared`."""
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
        """Makes it a part of a job.

        Args:
          office: carries a request to whoever keeps the job's ledger, and the answer back. If it raises, the request is
            sent again when the next batch is asked for.
          say: is told every 5 s for whom this worker waits.
          runtime: this task's.
        """
        self._office = office
        self.say = say
        self.runtime = runtime

    def __iter__(self) -> SharedIterator:
        """Goes on with the stream.

        Raises:
          DataError: this object has given all of it already.
        """
        if self._ended:
            raise DataError(
                f"the shared data {self.name!r} has come to its end, after {self.settings.epochs} epoch(s); "
                "ask for more epochs, or make another with a name of its own."
            )
        return SharedIterator(self, self._reader)

    @property
    def report(self) -> SharedReport:
        """What became of it so far."""
        return SharedReport(self._visited, self._repeated)

    @property
    def alone(self) -> bool:
        """Whether it is a job of its own."""
        return self._office is None

    def ask(self, request: LeaseRequest) -> LeaseAnswer:
        """Asks the job's office, or the own ledger; for `SharedIterator`."""
        if self._office is not None:
            answer = self._office(request)
        else:
            with self._lock:
                answer = self._ledger.lease(0, request)
        self._repeated = max(self._repeated, answer.repeated)
        return answer

    def record(self) -> str | None:
        """The own ledger as JSON, or None where the job has one."""
        if self._office is not None:
            return None
        with self._lock:
            return self._ledger.record()

    def restore(self, record: str | None) -> None:
        """Takes on a ledger's record, unless the job has a ledger.

        Raises:
          DataError: there is no record, or it is of other settings.
        """
        if self._office is not None:
            return
        if record is None:
            raise DataError(
                f"this position in the shared data {self.name!r} is that of one worker of a job, and says nothing of "
                "the others; go on with such a job, or start the data anew."
            )
        ledger = PieceLedger.from_record(record)
        before = ledger.settings
        if not ledger.prolong(self.settings):
            raise DataError(
                f"this position in the shared data {self.name!r} is of other data: {before}, where now there "
                f"is {self.settings}."
            )
        with self._lock:
            self._ledger = ledger

    def visited(self, examples: int) -> None:
        """Counts examples that were trained on; for `SharedIterator`."""
        self._visited += examples

    def ended(self, over: bool) -> None:
        """Notes whether all was given; for `SharedIterator`."""
        self._ended = over


@dataclass(slots=True)
class _Hold:
    """A piece in this worker's hands."""

    piece: Piece
    begin: int  # the piece's first unit
    stop: int
    unit: int  # all before it are trained on
    row: int = 0  # and so many rows of it


@dataclass(slots=True)
class _Given:
    """A batch that was given: how many examples, and how far its pieces are once it is trained on."""

    examples: int
    marks: list[tuple[_Hold, tuple[int, int]]]


class SharedIterator(Iterator[Any]):
    """Goes through shared data. `trained`, `get_state` and `close` may be called by another thread than `next`.

    A batch counts as trained on when it is given, until `trained` is first called: from then on it decides.
    """

    pause: Callable[[float], object]
    """Waits so many seconds, or less if this is closed meanwhile; tests may put another in its place."""
    on_wait: Callable[[], None] | None
    """Is called, by the thread that is in `next`, when there is no piece to train on but others' may come back."""

    _iterator: str
    _number: int  # of the next request
    _over: bool  # no piece will come
    _gone: bool  # the last report was sent
    _trained: int  # batches
    _rows: int  # that were read, and are not in a batch
    _barren: int  # pieces since the last one with an example in it
    _ready: Iterator[Any]
    _coming: deque[_Given]  # for those that are ready
    _given: deque[_Given]  # and not trained on
    _parts: deque[tuple[_Hold, Chunk, int]]  # that were read, with how many of their rows are in batches
    _chunks: Iterator[Chunk]
    _current: _Hold | None  # what they are of
    _holds: dict[Piece, _Hold]
    _finished: dict[Piece, None]  # and not reported
    _claims: tuple[tuple[int, int, int], ...]  # of a state, not reported
    _skip: dict[tuple[int, int], int]  # rows of files that a state says are done

    def __init__(self, owner: SharedBatches, reader: Reader) -> None:
        """Asks for nothing yet."""
        self._owner = owner
        self._reader = reader
        self._runtime = owner.runtime
        self._lock = self._runtime.recursive_lock()
        self._asking = self._runtime.lock()  # requests go out one by one, for each has its number
        self._closed = self._runtime.event()
        self.pause = self._closed.wait
        self.on_wait = None
        self._order: tuple[int, NDArray[np.intp]] = (-1, np.zeros(0, np.intp))
        self._told = False
        self._begin()

    def __next__(self) -> Any:
        """Gives the next batch.

        Raises:
          DataError: `load` gave what cannot be a batch, or other workers have other settings.
        """
        waited_s = 0.0
        while not self._closed.is_set():
            batch = self._next_made()
            if batch is not None:
                return batch[0]
            if not self._over:
                answer = self._ask()
                if answer is None:
                    break
                if answer.kind == "piece":
                    self._take(answer)
                    continue
                self._over = answer.kind == "end"
                if not self._rows and not self._over:
                    self._leave_out()
                    self._wait(answer.holders, waited_s)
                    waited_s += _PAUSE_S
                    continue
            # There is no further piece, or none for now: what is left is given, lest another wait for it in turn.
            if self._rows and not self._owner.drop_remainder:
                self._make([self._rows])
                continue
            self._leave_out()
            if self._over:
                self._owner.ended(True)
                self._leave()
                break
        raise StopIteration

    def trained(self, count: int) -> None:
        """Says that the first `count` batches which this iterator gave have been trained on."""
        with self._lock:
            self._told = True
            while self._trained < count and self._given:
                self._settle(self._given.popleft())
        self._leave()

    def get_state(self) -> dict[str, Any]:
        """Says, in plain values, how far the training is: what was given but not trained on comes again."""
        # What its own ledger hands out is received before the state is taken; a job's office may take its time.
        with self._asking if self._owner.alone else nullcontext(), self._lock:
            holds = self._holds.values()
            rows = {(hold.piece[0], hold.unit): hold.row for hold in holds if hold.row}
            state: dict[str, Any] = {
                "progress": [list(claim) for claim in self._progress()],
                "rows": [[*where, row] for where, row in (self._skip | rows).items()],
                "finished": [list(piece) for piece in self._finished],
                "visited": self._owner.report.examples_visited,
            }
            if (record := self._owner.record()) is not None:
                state["ledger"] = record
            return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state.

        Without other workers, exactly the batches follow that did. In a job its ledger has the last word: what others
        have trained on since is not given.

        Raises:
          DataError: it is no state of this data.
        """
        try:
            claims = tuple((int(e), int(p), int(n)) for e, p, n in state["progress"])
            rows = {(int(epoch), int(unit)): int(row) for epoch, unit, row in state["rows"]}
            finished = [(int(epoch), int(piece)) for epoch, piece in state["finished"]]
            visited, record = int(state["visited"]), state.get("ledger")
        except (KeyError, TypeError, ValueError) as exc:
            raise DataError(f"this is no position in shared data: {type(exc).__name__}: {exc}.") from exc
        self._owner.restore(record)
        with self._lock:
            self._begin()
            self._claims, self._skip, self._finished = claims, rows, dict.fromkeys(finished)
            self._owner.visited(visited - self._owner.report.examples_visited)
            self._owner.ended(False)

    def close(self) -> None:
        """Ends a wait, and gives back what was not trained on. Idempotent."""
        self._closed.set()
        try:
            self._leave()
        except TrainbandError:
            # Whoever keeps the ledger cannot be reached, or is gone with the job; a lease ends without a word, too.
            return

    def _begin(self) -> None:
        """Begins another iterator, which holds nothing."""
        self._iterator = self._runtime.token(6)
        self._number = 1
        self._over = self._gone = False
        self._trained = self._rows = self._barren = 0
        self._ready = self._chunks = iter(())
        self._coming, self._given, self._parts = deque(), deque(), deque()
        self._current = None
        self._holds, self._finished, self._claims, self._skip = {}, {}, (), {}

    def _next_made(self) -> tuple[Any] | None:
        """Gives a batch if what is in hand is enough for one."""
        size = self._owner.batch_size
        try:
            for batch in self._ready:
                return self._give(batch)
            self._ready = iter(())  # its memory is free for the next ones
            wanted = size * self._reader.batches_at_a_time
            while self._rows < wanted and self._read():
                pass
            if self._rows < size:
                return None
            self._make([size] * (min(self._rows, wanted) // size))
            return self._give(next(self._ready))
        except BaseException:
            self._closed.set()  # after an error of `load` nobody knows which examples would be left out
            raise

    def _make(self, sizes: Sequence[int]) -> None:
        """Makes batches of these sizes of what has been read."""
        parts: list[Rows] = []
        for size in sizes:
            marks: dict[Piece, tuple[_Hold, tuple[int, int]]] = {}
            missing = size
            while missing or (self._parts and self._parts[0][1].count == self._parts[0][2]):
                hold, chunk, used = self._parts.popleft()
                some = min(missing, chunk.count - used)
                if some:
                    parts.append(cut(chunk.rows, used, used + some))
                missing -= some
                used += some
                marks[hold.piece] = hold, chunk.mark(used)
                if used < chunk.count:
                    self._parts.appendleft((hold, chunk, used))
            self._coming.append(_Given(size, list(marks.values())))
        self._rows -= sum(sizes)
        self._ready = self._reader.batches(parts, sizes)

    def _leave_out(self) -> None:
        """Lets go of what has been read and will be in no batch."""
        marks = {hold.piece: (hold, chunk.mark(chunk.count)) for hold, chunk, _ in self._parts}
        self._parts.clear()
        self._rows = 0
        with self._lock:
            if self._given:
                self._given[-1].marks.extend(marks.values())
            else:
                self._advance(marks.values())

    def _wait(self, holders: Sequence[int], waited_s: float) -> None:
        """Waits a little before asking again, and says so now and then."""
        if waited_s == 0 and self.on_wait is not None:
            self.on_wait()
        self.pause(_PAUSE_S)
        before, now = waited_s // _SAY_EVERY_S, (waited_s + _PAUSE_S) // _SAY_EVERY_S
        if now > before and self._owner.say is not None:
            names = ", ".join(map(str, holders))
            self._owner.say(
                f"waiting for worker number {names} to train on the last pieces of {self._owner.name!r}, which come "
                f"here if it is lost ({waited_s + _PAUSE_S:.0f} s)"
            )

    def _leave(self) -> None:
        """Sends the last report, if this is the time for it and it was not sent."""
        with self._lock:
            done = self._over and not (self._parts or self._coming or self._given)
            if self._gone or self._number == 1 or not (done or self._closed.is_set()):
                return
        self._ask(want=False)

    def _give(self, batch: Any) -> tuple[Any]:
        with self._lock:
            given = self._coming.popleft()
            if self._told:
                self._given.append(given)
            else:
                self._settle(given)
        return (batch,)

    def _settle(self, given: _Given) -> None:
        """Notes that a batch has been trained on."""
        self._trained += 1
        self._owner.visited(given.examples)
        self._advance(given.marks)

    def _advance(self, marks: Iterable[tuple[_Hold, tuple[int, int]]]) -> None:
        for hold, (unit, row) in marks:
            hold.unit, hold.row = unit, row
            if unit == hold.stop and self._holds.get(hold.piece) is hold:
                del self._holds[hold.piece]
                self._finished[hold.piece] = None

    def _progress(self) -> tuple[tuple[int, int, int], ...]:
        """How far the training is in each piece in hand, or was according to a state that nobody was told of yet."""
        return self._claims or tuple((*hold.piece, hold.unit - hold.begin) for hold in self._holds.values())

    def _request(self, want: bool) -> LeaseRequest:
        owner, finished, progress = self._owner, tuple(self._finished), self._progress()
        return LeaseRequest(owner.name, owner.settings, finished, progress, want, self._iterator, self._number)

    def _ask(self, want: bool = True) -> LeaseAnswer | None:
        """Sends a report and maybe a wish; None after the last report."""
        with self._asking:
            if self._gone:
                return None
            with self._lock:
                request = self._request(want)
            answer = self._owner.ask(request)
            with self._lock:
                self._number += 1
                self._claims = ()
                self._gone = not want
                for piece in request.finished:
                    self._finished.pop(piece, None)
                if answer.kind == "piece":
                    # Under the lock and at once: a state that is taken now must name it.
                    self._received(answer)
            return answer

    def _received(self, answer: LeaseAnswer) -> None:
        piece = (answer.epoch, answer.piece)
        begin = answer.piece * self._owner.settings.piece
        row = self._skip.pop((answer.epoch, answer.start), 0)
        self._holds[piece] = _Hold(piece, begin, answer.stop, answer.start, row)

    def _take(self, answer: LeaseAnswer) -> None:
        """Begins to read a piece."""
        hold = self._holds[answer.epoch, answer.piece]
        if self._order[0] != answer.epoch:
            settings = self._owner.settings
            order = epoch_order(settings.examples, settings.seed, answer.epoch, shuffle=settings.shuffle)
            self._order = (answer.epoch, order)
        self._chunks = self._reader.read(answer.start, answer.stop, self._order[1])
        self._current = hold
        self._barren += 1
        if self._barren > self._owner.settings.pieces:
            self._closed.set()
            raise DataError(f"load gave no example for any of {self._barren} pieces of {self._owner.name!r}.")

    def _read(self) -> bool:
        """Reads one chunk; False if the piece in hand has no more, or there is none."""
        hold, chunk = self._current, next(self._chunks, None)
        if hold is None or chunk is None:
            self._current = None
            return False
        used = 0
        if not chunk.units and chunk.unit == hold.unit and chunk.row < hold.row:
            used = min(chunk.count, hold.row - chunk.row)  # only after `set_state`, in a file that is partly done
        if chunk.count > used:
            self._barren = 0
        if chunk.count > used or chunk.last:
            self._parts.append((hold, chunk, used))
        self._rows += chunk.count - used
        return True
