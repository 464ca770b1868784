"""The bounded-staleness rule (stale-synchronous parallel): asynchronous, but no worker runs far ahead.

Source: Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainband.ps.rules.base import (
    ALL_UPDATES_MADE,
    Apply,
    Begin,
    Drop,
    Event,
    Instruction,
    Join,
    Leave,
    Push,
    Reply,
    Setting,
    UpdateRule,
)
from trainband.ps.rules.ledger import Ledger
from trainband.runtime.overrides import override


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounded(UpdateRule):
    """Apply each gradient as it comes, but let no worker run more than `staleness` clocks ahead of the slowest.

    A worker's clock counts its pushes. Each push is applied at once; the answer waits, and with it the worker's
    next step. A worker is counted from its first push (which sets its clock to the slowest worker's) until it
    leaves.

    Args:
      staleness: clocks; 0 makes the workers step together.

    Raises:
      ValueError: it is negative.
    """

    staleness: int

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"Bounded.staleness must be 0 clocks or more, got {self.staleness}.")

    @override
    def settings(self) -> Mapping[str, Setting]:
        return {"name": "bounded", "staleness": self.staleness}

    @override
    def start(self, version: int, workers: int) -> BoundedState:  # noqa: ARG002 - it counts those that push
        return BoundedState(version, version, self.staleness)


@dataclass(frozen=True, slots=True)
class BoundedState:
    """The `RuleState` of `Bounded`.

    Attributes:
      clocks: the clock of every counted worker.
      held: replies that wait for the slowest worker to catch up.
    """

    version: int
    last_version: int
    staleness: int
    clocks: Mapping[int, int] = field(default_factory=dict)
    held: tuple[Reply, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)

    def advance(self, event: Event) -> tuple[BoundedState, tuple[Instruction, ...]]:
        match event:
            case Push():
                return self._push(event)
            case Join(worker):
                return replace(self, ledger=self.ledger.join(worker)), ()
            case Leave(worker):
                clocks = {other: clock for other, clock in self.clocks.items() if other != worker}
                held = tuple(reply for reply in self.held if reply.worker != worker)
                state = replace(self, ledger=self.ledger.leave(worker), clocks=clocks, held=held)
                return state._release(())
            case Begin(last_version):
                clocks = dict(self.clocks)
                if self.version >= self.last_version:  # the last training run is over: all start level in this one
                    clocks = dict.fromkeys(clocks, min(clocks.values(), default=0))
                return replace(self, last_version=last_version, clocks=clocks)._release(())

    def waiting_for(self) -> frozenset[int]:
        """Returns the slowest workers, if any worker waits."""
        if not self.held:
            return frozenset()
        slowest = min(self.clocks.values())
        return frozenset(worker for worker, clock in self.clocks.items() if clock == slowest)

    def share(self, worker: int) -> int:  # noqa: ARG002 - each worker decides
        return 0

    def _push(self, push: Push) -> tuple[BoundedState, tuple[Instruction, ...]]:
        self.ledger.check(push, self.version)
        reply = Reply(push.worker, push.sequence, self.version - push.version)
        if self.ledger.is_replay(push):
            if any((held.worker, held.sequence) == (push.worker, push.sequence) for held in self.held):
                return self, ()  # sent again while its answer is held: the answer will follow
            return self, (self.ledger.known(push), reply)
        state = replace(self, ledger=self.ledger.record(push))
        if self.version >= self.last_version:
            return state._without(push), (Drop(push.worker, push.sequence, ALL_UPDATES_MADE), reply)
        counted = push.worker in self.clocks
        clock = self.clocks[push.worker] + 1 if counted else min(self.clocks.values(), default=1)
        clocks = {**self.clocks, push.worker: clock}
        state = replace(state, version=self.version + 1, clocks=clocks, held=(*self.held, reply))
        return state._release((Apply(((push.worker, push.sequence),)),))

    def _without(self, push: Push) -> BoundedState:
        return replace(self, ledger=self.ledger.drop((push,)))

    def _release(self, before: tuple[Instruction, ...]) -> tuple[BoundedState, tuple[Instruction, ...]]:
        """Answers every worker that may continue."""
        over = self.version >= self.last_version
        limit = min(self.clocks.values(), default=0) + self.staleness
        free = tuple(reply for reply in self.held if over or self.clocks[reply.worker] <= limit)
        held = tuple(reply for reply in self.held if reply not in free)
        return replace(self, held=held), (*before, *free)
