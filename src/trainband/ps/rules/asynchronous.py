"""The asynchronous rule: every push becomes an update at once, however old its params are.

Source: Dean et al. 2012, Large Scale Distributed Deep Networks (Downpour SGD); Recht et al. 2011, Hogwild!
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainband.ps.rules.base import Apply, Begin, Drop, Event, Instruction, Join, Leave, Push, Reply, RuleError

ENOUGH = "the job has made all the updates that were asked for"
REPLAYED = "this push was dealt with before"


@dataclass(frozen=True, slots=True)
class Async:
    """Apply each worker's gradient as it comes. The fastest rule; updates are made from stale params."""

    def settings(self) -> Mapping[str, Any]:
        """See `UpdateRule.settings`."""
        return {"name": "async"}

    def start(self, version: int, workers: int) -> AsyncState:  # noqa: ARG002 - it never counts workers
        """See `UpdateRule.start`."""
        return AsyncState(version=version, last_version=version)


@dataclass(frozen=True, slots=True)
class AsyncState:
    """See `RuleState`."""

    version: int
    last_version: int
    sequences: tuple[tuple[int, int], ...] = ()
    """(worker, last sequence dealt with) of every worker that is in the job."""

    def advance(self, event: Event) -> tuple[AsyncState, tuple[Instruction, ...]]:
        """See `RuleState.advance`."""
        match event:
            case Push():
                return self._push(event)
            case Join(worker):
                return replace(self, sequences=(*self._others(worker), (worker, -1))), ()
            case Leave(worker):
                return replace(self, sequences=self._others(worker)), ()
            case Begin(last_version):
                return replace(self, last_version=last_version), ()

    def waiting_for(self) -> frozenset[int]:
        """See `RuleState.waiting_for`: nobody waits for anybody here."""
        return frozenset()

    def _push(self, push: Push) -> tuple[AsyncState, tuple[Instruction, ...]]:
        last = dict(self.sequences).get(push.worker)
        if last is None:
            raise RuleError(f"a push came from worker number {push.worker}, which is not in the job")
        if not 0 <= push.version <= self.version:
            raise RuleError(f"a push claims params of version {push.version}, but the version is {self.version}")
        staleness = self.version - push.version
        reply = Reply(push.worker, push.sequence, staleness)
        if push.sequence <= last:
            return self, (Drop(push.worker, push.sequence, REPLAYED), reply)
        sequences = (*self._others(push.worker), (push.worker, push.sequence))
        if self.version >= self.last_version:
            state = AsyncState(self.version, self.last_version, sequences)
            return state, (Drop(push.worker, push.sequence, ENOUGH), reply)
        state = AsyncState(self.version + 1, self.last_version, sequences)
        return state, (Apply(((push.worker, push.sequence),)), reply)

    def _others(self, worker: int) -> tuple[tuple[int, int], ...]:
        return tuple(entry for entry in self.sequences if entry[0] != worker)
