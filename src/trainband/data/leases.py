"""Leases on pieces of data: each epoch visits every example, even if workers join and leave."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from trainband.data.pieces import MOST, Doubt, Number, Piece, PieceBook, Share, SourceSettings
from trainband.errors import DataError
from trainband.runtime.formatting import PLAIN

MOST_PIECES_REPORTED = 10_000
"""The most pieces in one request."""
MOST_PIECES_AHEAD = 1_000_000
"""Pieces that workers may claim without having been given them, as they do after a restore."""

WorkerOfPiece = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]

_PAST_ITERATORS = 8  # remembered for each worker, so that a late copy of an old request is not taken for a new one


class LeaseRequest(msgspec.Struct, frozen=True):
    """A worker's report of what it has trained on, and its request for another piece.

    Attributes:
      source: the name of the data; a job may train on several.
      settings: as this worker has them.
      finished: pieces that it has trained on completely.
      progress: (epoch, piece, examples) for every piece that it holds: how many of its examples, counted from the
        piece's beginning, have been trained on. A piece that was given but is not listed is given again.
      want: whether it requests a piece. If not, it returns the pieces that it holds.
      iterator: a unique id of the requesting iterator.
      number: counts the requests of an iterator from 1. A repeated request keeps its number and gets the same answer.
    """

    source: Annotated[str, msgspec.Meta(pattern=rf"\A{PLAIN}{{1,1024}}\Z")]
    settings: SourceSettings
    finished: Annotated[tuple[Piece, ...], msgspec.Meta(max_length=MOST_PIECES_REPORTED)] = ()
    progress: Annotated[tuple[tuple[Number, Number, Number], ...], msgspec.Meta(max_length=MOST_PIECES_REPORTED)] = ()
    want: bool = True
    iterator: Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{0,128}\Z")] = ""
    number: Number = 1


class LeaseAnswer(msgspec.Struct, frozen=True):
    """The answer to a worker's request.

    Attributes:
      kind: train on a `piece`; `wait` and ask again, because pieces of other workers may come back; or `end`.
      epoch: of the piece.
      piece: its number.
      start: where the examples to train on begin, in the order of the epoch; after the piece's beginning if some of
        it has been trained on already.
      stop: where they end.
      repeated: examples (files, for a source of files) that may have been trained on more than once, over the job.
      holders: the workers that this worker waits for.
    """

    kind: Literal["piece", "wait", "end"]
    epoch: Number = 0
    piece: Number = 0
    start: Number = 0
    stop: Number = 0
    repeated: Number = 0
    holders: tuple[WorkerOfPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class _Last:
    """The last request of a worker."""

    iterator: str
    number: int
    answer: LeaseAnswer
    past: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ledger's record in a checkpoint."""

    settings: SourceSettings
    next: Piece
    held: tuple[tuple[WorkerOfPiece, Number, Number, Number, int], ...]
    """(worker, epoch, piece, done, doubt) each, in the order of the leases."""
    returned: tuple[tuple[Number, Number, Number, int], ...]  # epoch, piece, done, doubt
    ahead: tuple[Piece, ...]
    repeated: Number


class _Copy(msgspec.Struct, frozen=True):
    """A complete copy of a ledger."""

    settings: SourceSettings
    book: PieceBook
    last: dict[WorkerOfPiece, _Last]
    repeated: Number


class PieceLedger:
    """Hands out the pieces of one source. A pure object: no threads, no clock, no sockets.

    Pieces are handed out in the order of their epochs; no worker idles at an epoch's end, because the next epoch's
    pieces follow at once. Memory is used only for pieces that are held or were given back, not for a whole epoch.

    When a worker is lost, its pieces go back without the part that it reported as trained on. How much more of them it
    trained on is unknown, so all the rest counts as `repeated` once it is handed out again: an upper bound. It
    is 0 if no worker was ever lost, because a worker that leaves reports exactly.
    """

    def __init__(self, settings: SourceSettings) -> None:
        """`settings`: those of the first request; after a restore, the first request may have more epochs."""
        self._settings = settings
        self._book = PieceBook()
        self._last: dict[int, _Last] = {}
        self._repeated = 0

    @property
    def settings(self) -> SourceSettings:
        """The settings that all requests must agree on."""
        return self._settings

    @property
    def repeated(self) -> int:
        """Upper bound of the examples that were trained on more than once."""
        return self._repeated

    def held_by(self, worker: int) -> tuple[Piece, ...]:
        """Returns the pieces that this worker has or that are reserved for it, in the order of their leases."""
        return tuple(self._book.held.get(worker, ()))

    def holders(self) -> list[int]:
        """Returns the workers that hold pieces or have some reserved."""
        return self._book.holders()

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        """Takes a worker's report and hands out a piece.

        Args:
          worker: its number in the job.
          request: its report.

        Raises:
          DataError: its settings differ from those of the others, or it reports on a piece that does not exist.
        """
        self._check(request)
        book, last = self._book, self._last.get(worker)
        again = last is not None and last.iterator == request.iterator
        if last is not None and (request.iterator in last.past or (again and request.number < last.number)):
            return self._answer("wait")  # a late copy, whose sender no longer listens
        for finished in request.finished:
            book.finish(worker, finished)
        if last is not None and again and request.number == last.number:
            return last.answer
        begins = request.number == 1
        if begins:
            book.reserve(worker, set())
        for epoch, piece, done in request.progress:
            if done == self._settings.size(piece):
                book.finish(worker, (epoch, piece))
            else:
                book.hold(worker, (epoch, piece), done, begins)
        if not begins:
            book.reserve(worker, {(epoch, piece) for epoch, piece, _ in request.progress}, closing=not request.want)
        if request.want:
            answer = self._next(worker)
        else:
            book.return_pieces(worker)
            answer = self._answer("end")
        past = (
            last.past
            if again and last is not None
            else (*(last.past if last else ()), *([last.iterator] if last else []))
        )
        self._last[worker] = _Last(request.iterator, request.number, answer, past[-_PAST_ITERATORS:])
        return answer

    def prolong(self, settings: SourceSettings) -> bool:
        """Accepts settings of more epochs before the first request; returns whether the ledger has these settings."""
        mine, epochs = self._settings, settings.epochs
        is_longer = mine.epochs is not None and (epochs is None or epochs > mine.epochs)
        if is_longer and not self._last and msgspec.structs.replace(settings, epochs=mine.epochs) == mine:
            self._settings = settings
        return settings == self._settings

    def release(self, worker: int) -> None:
        """Takes back the pieces of a worker that died or left."""
        self._book.return_pieces(worker)
        self._last.pop(worker, None)

    def release_reserved(self, worker: int) -> bool:
        """Takes back the pieces that are only reserved for a worker; returns whether there were any."""
        return self._book.return_reserved(worker)

    def release_all_but(self, workers: Collection[int]) -> None:
        """Takes back the pieces of all other workers, as after a restore with fewer workers."""
        for worker in self._book.held.keys() - set(workers):
            self.release(worker)

    def record(self) -> str:
        """Returns the ledger as JSON, for a checkpoint."""
        book = self._book
        held = tuple(
            (worker, *piece, share.done, int(Doubt.UNTIL_CLAIMED if share.given else share.doubt))
            for worker, shares in book.held.items()
            for piece, share in shares.items()
        )
        returned = tuple((*piece, share.done, int(share.doubt)) for piece, share in book.returned.items())
        record = _Record(self._settings, book.next, held, returned, tuple(sorted(book.ahead)), self._repeated)
        return msgspec.json.encode(record).decode()

    def copy(self) -> bytes:
        """Returns the whole ledger as bytes, including the last answers, for `from_copy`."""
        return msgspec.msgpack.encode(_Copy(self._settings, self._book, self._last, self._repeated))

    @classmethod
    def from_copy(cls, data: bytes) -> PieceLedger:
        """Makes a second ledger in the same state.

        Raises:
          DataError: the bytes are not a ledger's copy.
        """
        try:
            copied = msgspec.msgpack.decode(data, type=_Copy)
            ledger = cls(copied.settings)
            ledger._resume_from(copied.book, copied.repeated)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            raise DataError(f"this is not the copy of a ledger of pieces: {exc}") from exc
        ledger._last = copied.last
        return ledger

    @classmethod
    def from_record(cls, text: str) -> PieceLedger:
        """Restores a ledger. Each worker's pieces stay reserved until it asks, or `release_all_but` is called.

        Raises:
          DataError: the text is not a ledger's record.
        """
        try:
            record = msgspec.json.decode(text, type=_Record)
            ledger = cls(record.settings)
            held: dict[int, dict[Piece, Share]] = {}
            for worker, epoch, piece, done, doubt in record.held:
                held.setdefault(worker, {})[epoch, piece] = Share(done, given=False, doubt=Doubt(doubt))
            returned = {
                (epoch, piece): Share(done, given=False, doubt=Doubt(doubt))
                for epoch, piece, done, doubt in record.returned
            }
            ledger._resume_from(PieceBook(record.next, held, returned, set(record.ahead)), record.repeated)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            raise DataError(f"this is not the record of a ledger of pieces: {exc}") from exc
        return ledger

    def _resume_from(self, book: PieceBook, repeated: int) -> None:
        """Resumes from a book after checking that it is possible with these settings."""
        book.check(self._settings)
        if not 0 <= repeated <= 2 * MOST:
            raise DataError(f"there cannot be {repeated} repeated examples.")
        self._book, self._repeated = book, repeated

    def _check(self, request: LeaseRequest) -> None:
        """Adopts the settings, and refuses reports on pieces that do not exist; then nothing changes."""
        before = self._settings
        if not self.prolong(request.settings):
            differences = ", ".join(
                f"{name}={getattr(request.settings, name)} where another worker has {getattr(self._settings, name)}"
                for name in SourceSettings.__struct_fields__
                if getattr(request.settings, name) != getattr(self._settings, name)
            )
            raise DataError(
                f"the data {request.source!r} differs from that of the other workers: {differences}; give every worker "
                "the same data and settings, or another name."
            )
        try:
            for piece in request.finished:
                self._settings.require(piece)
            for epoch, number, done in request.progress:
                self._settings.require((epoch, number), done)
            if len(self._book.ahead) + len(request.finished) + len(request.progress) > MOST_PIECES_AHEAD:
                raise DataError(f"over {MOST_PIECES_AHEAD:,} pieces of {request.source!r} are claimed but not given.")
        except DataError:
            self._settings = before
            raise

    def _next(self, worker: int) -> LeaseAnswer:
        """Hands out a piece if there is one for the worker."""
        taken = self._book.assign(worker, self._settings)
        if taken is None:
            holders = tuple(sorted(other for other in self._book.holders() if other != worker))
            return self._answer("wait", holders) if holders else self._answer("end")
        (epoch, number), share = taken
        size = self._settings.size(number)
        if share.doubt is not Doubt.NONE:
            self._repeated = min(self._repeated + size - share.done, MOST)
        begin = number * self._settings.piece
        return LeaseAnswer("piece", epoch, number, begin + share.done, begin + size, self._repeated)

    def _answer(self, kind: Literal["wait", "end"], holders: tuple[int, ...] = ()) -> LeaseAnswer:
        """Makes an answer without a piece."""
        return LeaseAnswer(kind, repeated=self._repeated, holders=holders)
