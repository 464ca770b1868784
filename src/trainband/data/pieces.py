"""The pieces of shared data: how a source is cut into them, and the state of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated

import msgspec

from trainband.errors import DataError

MOST = 1 << 53
"""Limit of every count: sums of as many as possible still fit into 64 bits."""
MOST_SEED = (1 << 63) - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]

Piece = tuple[Number, Number]
"""(epoch, number of the piece in it), both from 0."""


class SourceSettings(msgspec.Struct, frozen=True):
    """The settings that all workers must agree on.

    Attributes:
      examples: of an epoch; files, for a source of files.
      piece: examples a piece; the last piece of an epoch may have fewer.
      epochs: how many; None means without end.
      seed: of the order of the examples.
      shuffle: whether to change the given order.
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
        """Returns how many examples the piece with this number has."""
        return min(self.piece, self.examples - piece * self.piece)

    def after(self, piece: Piece) -> Piece:
        """Returns the piece that follows."""
        epoch, number = piece
        return (epoch, number + 1) if number + 1 < self.pieces else (epoch + 1, 0)

    def require(self, piece: Piece, done: int = 0) -> None:
        """Checks that a piece exists and has this many examples.

        Raises:
          DataError: it does not.
        """
        epoch, number = piece
        known = 0 <= epoch < (MOST if self.epochs is None else self.epochs) and 0 <= number < self.pieces
        if not known or not 0 <= done <= self.size(number):
            raise DataError(
                f"there are no {done} examples of piece {number} in epoch {epoch}: an epoch has {self.pieces} "
                f"pieces of {self.piece}, {self.examples} examples in all, and there are "
                f"{self.epochs or 'endless'} epochs."
            )


class Doubt(IntEnum):
    """Whether examples of a piece beyond those reported may have been trained on."""

    NONE = 0
    UNTIL_CLAIMED = 1
    """It was held when the record was written; its holder's own state, saved at the same time, has its progress."""
    LASTING = 2


@dataclass(frozen=True, slots=True)
class Share:
    """The rest of a piece that has been handed out."""

    done: int = 0  # examples certainly trained on, from the piece's beginning
    given: bool = True  # to its holder; if not, only reserved for it
    doubt: Doubt = Doubt.LASTING


@dataclass(slots=True)
class PieceBook:
    """The state of a source's pieces. All before `next` that are neither held nor returned are finished.

    Attributes:
      next: the first piece that was not handed out yet.
      held: by worker, the pieces that it has or that are reserved for it, in the order of their leases.
      returned: given back, for the next request.
      ahead: not before `next`, but already claimed after a restore.
    """

    next: Piece = (0, 0)
    held: dict[int, dict[Piece, Share]] = field(default_factory=dict)
    returned: dict[Piece, Share] = field(default_factory=dict)
    ahead: set[Piece] = field(default_factory=set)

    def check(self, settings: SourceSettings) -> None:
        """Refuses a book that is impossible with these settings.

        Raises:
          DataError: it is impossible.
        """
        for piece, share in (
            *((piece, share) for shares in self.held.values() for piece, share in shares.items()),
            *self.returned.items(),
            *((piece, Share()) for piece in self.ahead),
        ):
            settings.require(piece, share.done)
        epoch, number = self.next
        epochs = MOST if settings.epochs is None else settings.epochs
        if not (0 <= epoch <= epochs and 0 <= number < settings.pieces):
            raise DataError(f"the next piece cannot be {number} of epoch {epoch}.")
        if any(not 0 <= worker <= MOST for worker in self.held):
            raise DataError("a piece is held by a worker with an invalid number.")

    def holders(self) -> list[int]:
        """Returns the workers that hold pieces or have some reserved."""
        return [worker for worker, shares in self.held.items() if shares]

    def assign(self, worker: int, settings: SourceSettings) -> tuple[Piece, Share] | None:
        """Gives a piece to a worker: one reserved for it, else one given back, else the next one.

        Returns:
          The piece and its share as it was before, because its progress is unknown from now on until its holder
          reports; `None` if there is none.
        """
        mine = self.held.setdefault(worker, {})
        piece = next((piece for piece, share in mine.items() if not share.given), None)
        if piece is not None:
            share = mine[piece]
        elif self.returned:
            piece = min(self.returned)
            share = self.returned.pop(piece)
        else:
            while self.next in self.ahead:
                self.ahead.remove(self.next)
                self.next = settings.after(self.next)
            if settings.epochs is not None and self.next[0] >= settings.epochs:
                return None
            piece, share = self.next, Share(doubt=Doubt.NONE)
            self.next = settings.after(piece)
        mine[piece] = Share(share.done)
        return piece, share

    def finish(self, worker: int, piece: Piece) -> None:
        """Records that a worker has trained on all of a piece."""
        if self.held.get(worker, {}).pop(piece, None) or self.returned.pop(piece, None):
            return
        # Another worker may hold it because this one was thought lost: it continues, and is counted. Or this book was
        # restored, and is older than the worker's state.
        if piece >= self.next:
            self.ahead.add(piece)

    def hold(self, worker: int, piece: Piece, done: int, begins: bool) -> None:
        """Records a worker's progress in a piece, and gives it the piece unless another worker has it.

        Args:
          worker: its number.
          piece: which.
          done: how many of its examples it has trained on, fewer than all.
          begins: whether the worker's iterator is new and has not been given a piece yet.
        """
        mine = self.held.setdefault(worker, {})
        share = mine.get(piece) or self.returned.pop(piece, None)
        if share is None:
            if piece < self.next or piece in self.ahead:
                return  # it is finished, or with another
            self.ahead.add(piece)
            share = Share(given=False, doubt=Doubt.UNTIL_CLAIMED)
        doubt = Doubt.NONE if begins and share.doubt is not Doubt.LASTING else share.doubt
        mine[piece] = Share(max(share.done, done), given=not begins, doubt=doubt if begins else Doubt.LASTING)

    def reserve(self, worker: int, listed: Collection[Piece], *, closing: bool = False) -> None:
        """Reserves for a worker the pieces it was given but did not list; the report of one that leaves is exact."""
        mine = self.held.get(worker, {})
        for piece, share in mine.items():
            if share.given and (closing or piece not in listed):
                mine[piece] = replace(share, given=False, doubt=Doubt.NONE if closing else share.doubt)

    def return_pieces(self, worker: int) -> None:
        """Offers a worker's pieces to all."""
        for piece, share in self.held.pop(worker, {}).items():
            self._return(piece, share)

    def return_reserved(self, worker: int) -> bool:
        """Offers only the pieces reserved for a worker to all; returns whether there were any."""
        mine = self.held.get(worker, {})
        reserved = {piece: share for piece, share in mine.items() if not share.given}
        for piece, share in reserved.items():
            del mine[piece]
            self._return(piece, share)
        return bool(reserved)

    def _return(self, piece: Piece, share: Share) -> None:
        doubt = Doubt.LASTING if share.doubt is Doubt.UNTIL_CLAIMED else share.doubt
        self.returned[piece] = replace(share, given=False, doubt=doubt)
