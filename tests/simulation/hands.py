"""A simulated worker's hands on the shared data: what `trainband.data.shared.SharedIterator` says to the ledger."""

from __future__ import annotations

from tests.simulation.history import PieceKey
from trainband.data.leases import LeaseAnswer, LeaseRequest, SourceSettings


class Hands:
    """The pieces that a worker holds, and what it has trained on of each. A batch is never made of two pieces."""

    def __init__(self, settings: SourceSettings, life: str) -> None:
        self._settings = settings
        self._life = life
        self._number = 1
        self._holds: dict[PieceKey, list[int]] = {}
        self._finished: list[PieceKey] = []

    def request(self, *, want: bool) -> LeaseRequest:
        """What is said to the ledger now; the same again until there is an answer."""
        piece = self._settings.piece
        progress = tuple((epoch, number, done - number * piece) for (epoch, number), (done, _) in self._holds.items())
        return LeaseRequest("data", self._settings, tuple(self._finished), progress, want, self._life, self._number)

    def received(self, request: LeaseRequest, answer: LeaseAnswer) -> None:
        """The answer has come."""
        self._number += 1
        self._finished = [piece for piece in self._finished if piece not in request.finished]
        if answer.kind == "piece":
            self._holds[answer.epoch, answer.piece] = [answer.start, answer.stop]

    def batch(self, size: int) -> tuple[PieceKey, int, int] | None:
        """The next examples to train on: the piece, and [start, stop) of the epoch; None if nothing is in hand."""
        for piece, (start, stop) in self._holds.items():
            return piece, start, min(stop, start + size)
        return None

    def trained(self, piece: PieceKey, stop: int) -> None:
        """The examples of a piece before `stop` have been trained on."""
        hold = self._holds[piece]
        hold[0] = stop
        if hold[0] >= hold[1]:
            del self._holds[piece]
            self._finished.append(piece)
