"""The engine: a shard and its rule, and the pushes that wait for an answer. It does what the rule says.

Not thread-safe: the service holds its lock around every call. Only `PendingPush.answered` is for others to wait on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.ps.rules.base import REPLAYED, Apply, Drop, Event, Instruction, Known, Reply, RuleState
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.server.shard import ParamsVersion, Shard
from trainband.ps.statistics import StalenessCounts
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime import Event as WaitableEvent
from trainband.wire import messages as m
from trainband.wire.replication import HeldPush

Gradient = Sequence[NDArray[Any]]


def _nothing() -> None:
    """What follows an update where nobody wants to know."""


class PendingPush:
    """A push whose worker waits for the answer.

    Attributes:
      answered: set when the worker may have the params.
      updated: when the update that it is part of began and ended; zeros before.
      outcome: APPLIED or DROPPED.
      staleness: of the update.
      detail: why it was dropped; or that it was dealt with before, and what it counts for as well.
    """

    __slots__ = ("answered", "detail", "outcome", "staleness", "updated")

    def __init__(self, answered: WaitableEvent) -> None:
        self.answered = answered
        self.outcome = m.APPLIED
        self.staleness = 0
        self.detail = ""
        self.updated = (0.0, 0.0)


class _Held:
    """A gradient that the rule has accepted and not yet applied."""

    __slots__ = ("examples", "gradient", "version")

    def __init__(self, gradient: Gradient, examples: int, version: int) -> None:
        self.gradient = gradient
        self.examples = examples
        self.version = version


class Updater:
    """Turns events into updates and answers.

    `after_update` is called after each update, still under the lock.

    Args:
      shard: what is updated.
      rule: decides.
      delay_compensation: see `Async`; 0 for none.
      state_of: the only worker whose model state counts; `None`: the mean of all.
      runtime: this task's.
    """

    def __init__(
        self,
        shard: Shard,
        rule: RuleState,
        delay_compensation: float = 0.0,
        state_of: int | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._runtime = runtime
        self._state_of = state_of
        self.shard = shard
        self.rule = rule
        self.after_update: Callable[[], None] = _nothing
        self.staleness = StalenessCounts()
        self.examples_applied = 0
        self.examples_dropped = 0
        self.busy_s = 0.0
        """Seconds that updates have taken."""
        self._held: dict[tuple[int, int], _Held] = {}
        self._waiting: dict[tuple[int, int], PendingPush] = {}
        self._compensation = delay_compensation
        self._seen: dict[int, ParamsVersion] = {}

    def push(self, event: PushEvent, gradient: Gradient) -> PendingPush:
        """Takes a push. Its gradient is borrowed until the push is answered.

        Raises:
          RuleError: no honest worker sends this; nothing has changed.
        """
        instructions = self._taken(event, gradient)
        # A push that comes twice, on an old stream and on a new one, has one answer.
        pending = self._waiting.get((event.worker, event.sequence))
        if pending is None:
            pending = self._waiting[event.worker, event.sequence] = PendingPush(self._runtime.event())
        self._follow(instructions)
        return pending

    def replay(self, event: PushEvent, gradient: Gradient) -> None:
        """Takes a push that another engine has taken, for which nobody waits here. Its gradient is borrowed."""
        self._follow(self._taken(event, gradient))
        self._own((event.worker, event.sequence))

    def _taken(self, event: PushEvent, gradient: Gradient) -> Sequence[Instruction]:
        """What the rule says of a push. Of one that is sent again, the gradient is held already, or not wanted."""
        again = self.rule.ledger.is_replay(event)
        self.rule, instructions = self.rule.advance(event)
        if not again:
            self._held[event.worker, event.sequence] = _Held(gradient, event.examples, event.version)
        return instructions

    def held(self) -> list[tuple[HeldPush, Gradient]]:
        """The pushes that the rule has accepted and not yet applied."""
        return [
            (HeldPush(worker, sequence, held.examples, held.version), held.gradient)
            for (worker, sequence), held in self._held.items()
        ]

    def hold(self, push: HeldPush, gradient: Gradient) -> None:
        """Takes over one of another engine's `held`. The gradient is kept."""
        self._held[push.worker, push.sequence] = _Held(gradient, push.examples, push.version)

    def let_go(self) -> None:
        """As `free_all`; what the rule has accepted stays, in memory of its own."""
        for key in self._held:
            self._own(key)
        self.free_all()

    def free_all(self) -> None:
        """Lets everybody go who waits for an answer: it will not come from here."""
        for pending in self._waiting.values():
            pending.answered.set()
        self._waiting.clear()

    def _own(self, key: tuple[int, int]) -> None:
        """Copies a gradient that is still held: the memory that it lies in will be written again."""
        held = self._held.get(key)
        if held is not None:
            held.gradient = tuple(np.array(block) for block in held.gradient)

    def advance(self, event: Event) -> None:
        """Takes any other event."""
        if isinstance(event, LeaveEvent):
            for key in [key for key in self._waiting if key[0] == event.worker]:
                self._waiting.pop(key).answered.set()  # if it lives after all, it continues from the params as they are
            self.forget(event.worker)
            for key in self._held:
                if key[0] == event.worker:  # the memory that it lies in goes with the worker's stream
                    self._own(key)
        self.rule, instructions = self.rule.advance(event)
        self._follow(instructions)

    def waiting(self) -> set[int]:
        """The workers that wait for an answer."""
        return {worker for worker, _ in self._waiting}

    def held_of(self, worker: int) -> int:
        """How many gradients of this worker wait for their update."""
        return sum(holder == worker for holder, _ in self._held)

    def remember(self, worker: int, version: ParamsVersion) -> None:
        """Keeps what was sent to a worker, where its next gradient is to be compensated for its delay."""
        if self._compensation:
            self.forget(worker)
            version.readers += 1
            self._seen[worker] = version

    def forget(self, worker: int) -> None:
        """Keeps nothing for this worker any more."""
        old = self._seen.pop(worker, None)
        if old is not None:
            old.readers -= 1

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Apply(pushes=keys, scale=scale):
                    self._apply(keys, scale)
                case Drop(worker=worker, sequence=sequence, reason=reason):
                    dropped = self._held.pop((worker, sequence), None)
                    if dropped is not None:
                        self.examples_dropped += dropped.examples
                    self._decide(worker, sequence, m.DROPPED, reason)
                case Known(worker=worker, sequence=sequence, applied=applied):
                    self._decide(worker, sequence, m.APPLIED if applied else m.DROPPED, REPLAYED)
                case Reply(worker=worker, sequence=sequence, staleness=staleness):
                    self._answer(worker, sequence, staleness)

    def _decide(self, worker: int, sequence: int, outcome: int, detail: str) -> None:
        waiting = self._waiting.get((worker, sequence))
        if waiting is not None:
            waiting.outcome, waiting.detail = outcome, detail

    def _apply(self, keys: Sequence[tuple[int, int]], scale: float) -> None:
        begin = self._runtime.clock()
        held = [self._held.pop(key) for key in keys]
        gradients = [
            self._compensated(worker, one) if self._compensation else one.gradient
            for (worker, _), one in zip(keys, held, strict=True)
        ]
        mean = gradients[0] if len(gradients) == 1 else self.shard.mean(gradients, [one.examples for one in held])
        if self._state_of is not None:
            workers = self.rule.ledger.workers
            chief = self._state_of if self._state_of in workers or not workers else min(workers)
            sources = [one.gradient for (worker, _), one in zip(keys, held, strict=True) if worker == chief]
            mean = self.shard.with_state_of(mean, sources[0] if sources else None)
        self.shard.update(mean, scale)
        end = self._runtime.clock()
        self.busy_s += end - begin
        for key in keys:
            pending = self._waiting.get(key)
            if pending is not None:
                pending.updated = begin, end
        self.after_update()
        self.examples_applied += sum(one.examples for one in held)

    def _compensated(self, worker: int, held: _Held) -> Gradient:
        then = self._seen.get(worker)
        if then is None or then.number != held.version:
            return held.gradient
        return self.shard.compensate(held.gradient, then, self._compensation)

    def _answer(self, worker: int, sequence: int, staleness: int) -> None:
        pending = self._waiting.pop((worker, sequence), None)
        if pending is None:
            return  # it has left since
        self._own((worker, sequence))  # where it is answered before its step is complete
        pending.staleness = staleness
        if pending.outcome == m.APPLIED and not pending.detail:
            self.staleness.add(staleness)
        pending.answered.set()
