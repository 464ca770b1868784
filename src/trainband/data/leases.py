"""Leases on pieces of data: who trains on what, so that each epoch visits every example, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, Literal

import msgspec

from trainband.errors import DataError

MOST = 1 << 53
"""Of anything that is counted: sums of as many as there may be still travel as 64 bits."""
MOST_SEED = (1 << 63) - 1
MOST_PIECES_REPORTED = 10_000
"""In one request."""
MOST_PIECES_AHEAD = 1_000_000
"""That workers may have claimed beyond those that were handed out, as they do after a restore."""

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
WorkerOfPiece = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]

Piece = tuple[Number, Number]
"""(epoch, number of the piece in it), both from 0 on."""

_PAST_ITERATORS = (
    8  # of a worker that are remembered, so that a belated copy of one's request is not taken for a new one
)


class SourceSettings(msgspec.Struct, frozen=True):
    """What all workers must agree on.

    Attributes:
      examples: of an epoch; files, for a source of files.
      piece: examples a piece; the last piece of an epoch may have fewer.
      epochs: how many; None is without end.
      seed: of the order of the examples.
      shuffle: whether there is an order other than the given one.
    """

    examples: Number
    piece: Number
    epochs: Number | None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEED)]
    shuffle: bool

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name, least in (("examples", 1), ("piece", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name} must be at least {least}, got {getattr(self, name)}.")
            most = MOST if name != "seed" else MOST_SEED
            if getattr(self, name) > most:
                raise DataError(f"{name} must be at most {most}, got {getattr(self, name)}.")
        if self.epochs is not None and self.epochs < 1:
            raise DataError(f"epochs must be at least 1, or None for no end, got {self.epochs}.")
        if self.epochs is not None and self.epochs > MOST:
            raise DataError(f"epochs must be at most {MOST}, or None for no end, got {self.epochs}.")

    @property
    def pieces(self) -> int:
        """Pieces an epoch."""
        return -(-self.examples // self.piece)

    def size(self, piece: int) -> int:
        """How many examples the piece with this number has."""
        return min(self.piece, self.examples - piece * self.piece)


class LeaseRequest(msgspec.Struct, frozen=True):
    """A worker's report of what it has trained on, and its wish for another piece.

    Attributes:
      source: the name of the data; a job may train on several.
      settings: as this worker has them.
      finished: pieces that it has trained on fully.
      progress: (epoch, piece, examples) for every piece that it holds: how many of its examples, counted from the
        piece's beginning, have been trained on. A piece that was given and is not listed is given again.
      want: whether it asks for a piece. If not, it gives back what it holds.
      iterator: which one asks: anything that is another for every one that there is or was.
      number: counts the requests of an iterator from 1 on. One that is sent again keeps its number and gets its answer.
    """

    source: Annotated[str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]{1,1024}\Z")]
    settings: SourceSettings
    finished: Annotated[tuple[Piece, ...], msgspec.Meta(max_length=MOST_PIECES_REPORTED)] = ()
    progress: Annotated[tuple[tuple[Number, Number, Number], ...], msgspec.Meta(max_length=MOST_PIECES_REPORTED)] = ()
    want: bool = True
    iterator: Annotated[str, msgspec.Meta(pattern=r"\A[ -~]{0,128}\Z")] = ""
    number: Number = 1


class LeaseAnswer(msgspec.Struct, frozen=True):
    """What a worker is to do.

    Attributes:
      kind: train on a `piece`; `wait` and ask again, because pieces that others hold may come back; or `end`.
      epoch: of the piece.
      piece: its number.
      start: where the examples to train on begin, in the order of the epoch; beyond the piece's beginning if some of
        it has been trained on already.
      stop: where they end.
      repeated: examples (files, for a source of files) that may have been trained on more than once, over the job.
      holders: the workers that are waited for.
    """

    kind: Literal["piece", "wait", "end"]
    epoch: Number = 0
    piece: Number = 0
    start: Number = 0
    stop: Number = 0
    repeated: Number = 0
    holders: tuple[WorkerOfPiece, ...] = ()


class Doubt(IntEnum):
    """Whether examples of a piece beyond those reported may have been trained on."""

    NONE = 0
    UNTIL_CLAIMED = 1
    """It was held when the record was written; its holder's own state, of the same time, knows how far it was."""
    LASTING = 2


@dataclass(frozen=True, slots=True)
class _Share:
    """What is left of a piece that has been handed out."""

    done: int = 0  # examples trained on for certain, from the piece's beginning
    given: bool = True  # whether it is in its holder's hands, as against reserved for it
    doubt: Doubt = Doubt.LASTING


@dataclass(frozen=True, slots=True)
class _Last:
    """The last request of a worker."""

    iterator: str
    number: int
    answer: LeaseAnswer
    past: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ledger as it stands in a checkpoint."""

    settings: SourceSettings
    next: Piece
    held: tuple[tuple[WorkerOfPiece, Number, Number, Number, int], ...]
    """(worker, epoch, piece, done, doubt) each, in the order of the leases."""
    returned: tuple[tuple[Number, Number, Number, int], ...]  # epoch, piece, done, doubt
    ahead: tuple[Piece, ...]
    repeated: Number


@dataclass(slots=True)
class _Book:
    """Where the pieces are. All before `next` that are neither held nor returned are finished."""

    next: Piece = (0, 0)
    held: dict[int, dict[Piece, _Share]] = field(default_factory=dict)
    returned: dict[Piece, _Share] = field(default_factory=dict)
    ahead: set[Piece] = field(default_factory=set)  # from `next` on, but dealt with: claimed after a restore


class _Copy(msgspec.Struct, frozen=True):
    """A ledger as it is."""

    settings: SourceSettings
    book: _Book
    last: dict[WorkerOfPiece, _Last]
    repeated: Number


class PieceLedger:
    """Hands out the pieces of one source. A pure object: no threads, no clock, no sockets.

    Pieces are handed out in the order of their epochs; nobody idles at an epoch's end, because the next epoch's pieces
    follow at once. It needs memory for the pieces that are held or were given back, not for those of an epoch.

    When a worker is lost, its pieces go back without the part that it reported as trained on. How much more of them it
    trained on nobody knows, so that all the rest counts as `repeated` once it is handed out again: an upper bound. It
    is 0 if no worker was ever lost, because one that leaves reports exactly.
    """

    def __init__(self, settings: SourceSettings) -> None:
        """`settings`: the first asker's; after a restore, the first asker may have more epochs."""
        self._settings = settings
        self._book = _Book()
        self._last: dict[int, _Last] = {}
        self._repeated = 0

    @property
    def settings(self) -> SourceSettings:
        """What all askers must agree on."""
        return self._settings

    @property
    def repeated(self) -> int:
        """Examples that may have been trained on more than once, at most."""
        return self._repeated

    def held_by(self, worker: int) -> tuple[Piece, ...]:
        """The pieces that are with this worker or reserved for it, in the order of their leases."""
        return tuple(self._book.held.get(worker, ()))

    def holders(self) -> list[int]:
        """The workers that hold pieces, or for whom some are reserved."""
        return [worker for worker, shares in self._book.held.items() if shares]

    def lease(self, worker: int, request: LeaseRequest) -> LeaseAnswer:
        """Takes a worker's report and hands out a piece.

        Args:
          worker: its number in the job.
          request: what it says.

        Raises:
          DataError: its settings are not those of the others, or it reports on a piece that does not exist.
        """
        self._check(request)
        last = self._last.get(worker)
        again = last is not None and last.iterator == request.iterator
        if last is not None and (request.iterator in last.past or (again and request.number < last.number)):
            return self._answer("wait")  # a belated copy, whose sender listens no more
        for finished in request.finished:
            self._finish(worker, finished)
        if last is not None and again and request.number == last.number:
            return last.answer
        begins = request.number == 1
        if begins:
            self._reserve(worker, set())
        for epoch, piece, done in request.progress:
            self._hold(worker, (epoch, piece), done, begins)
        if not begins:
            self._reserve(worker, {(epoch, piece) for epoch, piece, _ in request.progress}, closing=not request.want)
        if request.want:
            answer = self._next(worker)
        else:
            self._give_back(worker)
            answer = self._answer("end")
        past = (
            last.past
            if again and last is not None
            else (*(last.past if last else ()), *([last.iterator] if last else []))
        )
        self._last[worker] = _Last(request.iterator, request.number, answer, past[-_PAST_ITERATORS:])
        return answer

    def prolong(self, settings: SourceSettings) -> bool:
        """Takes on settings of more epochs before anybody has asked; returns whether these are the ledger's now."""
        mine, epochs = self._settings, settings.epochs
        is_longer = mine.epochs is not None and (epochs is None or epochs > mine.epochs)
        if is_longer and not self._last and msgspec.structs.replace(settings, epochs=mine.epochs) == mine:
            self._settings = settings
        return settings == self._settings

    def release(self, worker: int) -> None:
        """Takes back what a worker holds, because it died or left."""
        self._give_back(worker)
        self._last.pop(worker, None)

    def release_reserved(self, worker: int) -> bool:
        """Takes back what is reserved for a worker, and leaves it what it has; returns whether there was any."""
        mine = self._book.held.get(worker, {})
        reserved = {piece: share for piece, share in mine.items() if not share.given}
        for piece, share in reserved.items():
            del mine[piece]
            self._return(piece, share)
        return bool(reserved)

    def release_all_but(self, workers: Collection[int]) -> None:
        """Takes back what is held by any other than these, as after a restore with fewer workers."""
        for worker in self._book.held.keys() - set(workers):
            self.release(worker)

    def record(self) -> str:
        """Gives the ledger as JSON, for a checkpoint."""
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
        """Gives the whole ledger as bytes, down to the last answers: what `from_copy` makes of them goes on alike."""
        return msgspec.msgpack.encode(_Copy(self._settings, self._book, self._last, self._repeated))

    @classmethod
    def from_copy(cls, data: bytes) -> PieceLedger:
        """Makes a second ledger that is in the same state.

        Raises:
          DataError: the bytes are not a ledger's copy.
        """
        try:
            copied = msgspec.msgpack.decode(data, type=_Copy)
            ledger = cls(copied.settings)
            ledger._check_book(copied.book, copied.repeated)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            raise DataError(f"this is not the copy of a ledger of pieces: {exc}") from exc
        ledger._book, ledger._last, ledger._repeated = copied.book, copied.last, copied.repeated
        return ledger

    @classmethod
    def from_record(cls, text: str) -> PieceLedger:
        """Restores a ledger. What a worker held is reserved for it until it asks, or `release_all_but` is called.

        Raises:
          DataError: the text is not a ledger's record.
        """
        try:
            record = msgspec.json.decode(text, type=_Record)
            ledger = cls(record.settings)
            held: dict[int, dict[Piece, _Share]] = {}
            for worker, epoch, piece, done, doubt in record.held:
                share = _Share(done, given=False, doubt=Doubt(doubt))
                held.setdefault(worker, {})[ledger._existing(epoch, piece, done)] = share
            returned = {
                ledger._existing(epoch, piece, done): _Share(done, given=False, doubt=Doubt(doubt))
                for epoch, piece, done, doubt in record.returned
            }
            book = _Book(record.next, held, returned, set(record.ahead))
            ledger._check_book(book, record.repeated)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            raise DataError(f"this is not the record of a ledger of pieces: {exc}") from exc
        ledger._book = book
        ledger._repeated = record.repeated
        return ledger

    def _check(self, request: LeaseRequest) -> None:
        """Takes on the settings, and refuses reports on what does not exist; then nothing has changed."""
        before = self._settings
        if not self.prolong(request.settings):
            differences = ", ".join(
                f"{name}={getattr(request.settings, name)} where another worker has {getattr(self._settings, name)}"
                for name in SourceSettings.__struct_fields__
                if getattr(request.settings, name) != getattr(self._settings, name)
            )
            raise DataError(
                f"the data {request.source!r} is not that of the other workers: {differences}; give every worker the "
                "same data and settings, or another name."
            )
        try:
            for epoch, piece in request.finished:
                self._existing(epoch, piece, 0)
            for claim in request.progress:
                self._existing(*claim)
            if len(self._book.ahead) + len(request.finished) + len(request.progress) > MOST_PIECES_AHEAD:
                raise DataError(f"over {MOST_PIECES_AHEAD:,} pieces of {request.source!r} are claimed and not given.")
        except DataError:
            self._settings = before
            raise

    def _check_book(self, book: _Book, repeated: int) -> None:
        """Refuses what no ledger of these settings can have come to."""
        for piece, share in (
            *((piece, share) for shares in book.held.values() for piece, share in shares.items()),
            *book.returned.items(),
            *((piece, _Share()) for piece in book.ahead),
        ):
            self._existing(*piece, share.done)
        epoch, number = book.next
        epochs = MOST if self._settings.epochs is None else self._settings.epochs
        if not (0 <= epoch <= epochs and 0 <= number < self._settings.pieces and 0 <= repeated <= 2 * MOST):
            raise DataError(f"the next piece cannot be {number} of epoch {epoch}, after {repeated} repeated examples.")
        if any(not 0 <= worker <= MOST for worker in book.held):
            raise DataError("a piece is held by a worker whose number is none.")

    def _existing(self, epoch: int, piece: int, done: int) -> Piece:
        """Gives the piece, after a check that it exists and has so many examples."""
        settings = self._settings
        epochs = MOST if settings.epochs is None else settings.epochs
        known = 0 <= epoch < epochs and 0 <= piece < settings.pieces
        if not known or not 0 <= done <= settings.size(piece):
            raise DataError(
                f"there are no {done} examples of piece {piece} in epoch {epoch}: an epoch has {settings.pieces} "
                f"pieces of {settings.piece}, {settings.examples} examples in all, and there are "
                f"{settings.epochs or 'endless'} epochs."
            )
        return (epoch, piece)

    def _finish(self, worker: int, piece: Piece) -> None:
        """Notes that a worker has trained on all of a piece."""
        book = self._book
        if book.held.get(worker, {}).pop(piece, None) or book.returned.pop(piece, None):
            return
        # Another may hold it, after this worker was thought lost: it goes on, and is counted. Or this ledger was
        # restored, and is older than the worker's state.
        if piece >= book.next:
            book.ahead.add(piece)

    def _hold(self, worker: int, piece: Piece, done: int, begins: bool) -> None:
        """Notes how far a worker is with a piece, and lets it have the piece unless another has it."""
        if done == self._settings.size(piece[1]):
            self._finish(worker, piece)
            return
        book = self._book
        mine = book.held.setdefault(worker, {})
        share = mine.get(piece) or book.returned.pop(piece, None)
        if share is None:
            if piece < book.next or piece in book.ahead:
                return  # it is finished, or with another
            book.ahead.add(piece)
            share = _Share(given=False, doubt=Doubt.UNTIL_CLAIMED)
        doubt = Doubt.NONE if begins and share.doubt is not Doubt.LASTING else share.doubt
        mine[piece] = _Share(max(share.done, done), given=not begins, doubt=doubt if begins else Doubt.LASTING)

    def _reserve(self, worker: int, listed: Collection[Piece], *, closing: bool = False) -> None:
        """Marks what is not in a worker's hands to be given to it again; the report of one that leaves is exact."""
        mine = self._book.held.get(worker, {})
        for piece, share in mine.items():
            if share.given and (closing or piece not in listed):
                mine[piece] = replace(share, given=False, doubt=Doubt.NONE if closing else share.doubt)

    def _give_back(self, worker: int) -> None:
        """Moves what a worker holds to what anybody may have."""
        for piece, share in self._book.held.pop(worker, {}).items():
            self._return(piece, share)

    def _return(self, piece: Piece, share: _Share) -> None:
        doubt = Doubt.LASTING if share.doubt is Doubt.UNTIL_CLAIMED else share.doubt
        self._book.returned[piece] = replace(share, given=False, doubt=doubt)

    def _next(self, worker: int) -> LeaseAnswer:
        """Hands out what was reserved for the worker, else what was given back, else the next piece there is."""
        book = self._book
        mine = book.held.setdefault(worker, {})
        reserved = next((piece for piece, share in mine.items() if not share.given), None)
        if reserved is not None:
            return self._give(worker, reserved, mine[reserved])
        if book.returned:
            piece = min(book.returned)
            return self._give(worker, piece, book.returned.pop(piece))
        while book.next in book.ahead:
            book.ahead.remove(book.next)
            book.next = self._after(book.next)
        if self._settings.epochs is None or book.next[0] < self._settings.epochs:
            piece, book.next = book.next, self._after(book.next)
            return self._give(worker, piece, _Share(doubt=Doubt.NONE))
        holders = tuple(sorted(self._holders(worker)))
        return self._answer("wait", holders) if holders else self._answer("end")

    def _holders(self, worker: int) -> Iterator[int]:
        """The other workers whose pieces may come back."""
        return (other for other, shares in self._book.held.items() if shares and other != worker)

    def _after(self, piece: Piece) -> Piece:
        """Gives the piece that follows."""
        epoch, number = piece
        return (epoch, number + 1) if number + 1 < self._settings.pieces else (epoch + 1, 0)

    def _give(self, worker: int, piece: Piece, share: _Share) -> LeaseAnswer:
        """Puts a piece into a worker's hands; from now on nobody knows how far it is, until it reports."""
        epoch, number = piece
        size = self._settings.size(number)
        if share.doubt is not Doubt.NONE:
            self._repeated = min(self._repeated + size - share.done, MOST)
        self._book.held[worker][piece] = _Share(share.done)
        begin = number * self._settings.piece
        return LeaseAnswer("piece", epoch, number, begin + share.done, begin + size, self._repeated)

    def _answer(self, kind: Literal["wait", "end"], holders: tuple[int, ...] = ()) -> LeaseAnswer:
        """An answer without a piece."""
        return LeaseAnswer(kind, repeated=self._repeated, holders=holders)
