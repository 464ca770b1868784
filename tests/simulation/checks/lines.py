"""What each replica of a shard knows, as its history says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tests.simulation.history import Record, Taught, Teaching

State = TypeVar("State")


class OfReplica(Protocol):
    """A record of one replica."""

    @property
    def shard(self) -> int: ...

    @property
    def replica(self) -> str: ...


class Lines(Generic[State]):
    """A state for each replica of each shard. A snapshot copies it from one to the other."""

    def __init__(self, new: Callable[[], State]) -> None:
        self._new = new
        self._states: dict[tuple[int, str], State] = {}
        self._installs: dict[tuple[int, str, str, int], State] = {}

    def __getitem__(self, record: OfReplica) -> State:
        """That of the replica of which the record is."""
        key = record.shard, record.replica
        if key not in self._states:
            self._states[key] = self._new()
        return self._states[key]

    def __setitem__(self, record: OfReplica, state: State) -> None:
        self._states[record.shard, record.replica] = state

    def start_install(self, record: Record) -> None:
        """Copies, if the record is of a snapshot."""
        if isinstance(record, Teaching):
            key = record.shard, record.replica, record.lineage, record.position
            self._installs[key] = copy.deepcopy(self[record])
        elif isinstance(record, Taught):
            install = self._installs[record.shard, record.by, record.lineage, record.position]
            self[record] = copy.deepcopy(install)
