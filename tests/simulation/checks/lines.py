"""What each seat of a shard knows, as its history says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tests.simulation.history import Record, Taught, Teaching

State = TypeVar("State")


class OfSeat(Protocol):
    """A record of one seat."""

    @property
    def shard(self) -> int: ...

    @property
    def seat(self) -> str: ...


class Lines(Generic[State]):
    """A state for each seat of each shard. A lesson copies it from one to the other."""

    def __init__(self, new: Callable[[], State]) -> None:
        self._new = new
        self._states: dict[tuple[int, str], State] = {}
        self._lessons: dict[tuple[int, str, str, int], State] = {}

    def __getitem__(self, record: OfSeat) -> State:
        """That of the seat of which the record is."""
        key = record.shard, record.seat
        if key not in self._states:
            self._states[key] = self._new()
        return self._states[key]

    def __setitem__(self, record: OfSeat, state: State) -> None:
        self._states[record.shard, record.seat] = state

    def teach(self, record: Record) -> None:
        """Copies, if the record is of a lesson."""
        if isinstance(record, Teaching):
            key = record.shard, record.seat, record.lineage, record.position
            self._lessons[key] = copy.deepcopy(self[record])
        elif isinstance(record, Taught):
            lesson = self._lessons[record.shard, record.by, record.lineage, record.position]
            self[record] = copy.deepcopy(lesson)
