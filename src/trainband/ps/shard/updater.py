"""The updater: a shard, its rule, and the pushes that wait for an answer. It follows the rule's instructions.

Not thread-safe: the service holds its lock around every call. Others may wait only on `PendingPush.answered`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.job.statistics import StalenessCounts
from trainband.ps.rules.base import REPLAYED, Apply, Drop, Event, Instruction, Known, Reply, RuleState
from trainband.ps.rules.base import Join as JoinEvent
from trainband.ps.rules.base import Leave as LeaveEvent
from trainband.ps.rules.base import Push as PushEvent
from trainband.ps.shard.pushed import with_state_of
from trainband.ps.shard.shard import ParamsVersion, Shard
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime import Event as WaitableEvent
from trainband.wire.messages import calls as m
from trainband.wire.messages.replication import HeldPush

Gradient = Sequence[NDArray[Any]]


def _nothing() -> None:
    """Default `after_update`: does nothing."""


class PendingPush:
    """A push whose worker waits for the answer.

    Attributes:
      answered: set when the worker may have the params.
      updated: when the update that it is part of began and ended; zeros before.
      outcome: APPLIED or DROPPED.
      staleness: of the update.
      detail: why it was dropped, or that it was dealt with before.
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

    Args:
      delay_compensation: see `Async`; 0 for none.
      state_of: the only worker whose model state counts; `None`: the mean of all.
      after_update: called after each update, still under the lock.
    """

    def __init__(
        self,
        shard: Shard,
        rule: RuleState,
        delay_compensation: float = 0.0,
        state_of: int | None = None,
        runtime: Runtime = SYSTEM,
        after_update: Callable[[], None] = _nothing,
    ) -> None:
        self._runtime = runtime
        self._state_of = state_of
        self.shard = shard
        self.rule = rule
        self._after_update = after_update
        self.staleness = StalenessCounts()
        self.examples_applied = 0
        self.examples_dropped = 0
        self.busy_s = 0.0
        """Seconds spent on updates."""
        self._held: dict[tuple[int, int], _Held] = {}
        self._waiting: dict[tuple[int, int], PendingPush] = {}
        self._compensation = delay_compensation
        self._seen: dict[int, ParamsVersion] = {}

    def start(self, rule: RuleState, workers: Mapping[int, bool]) -> None:
        """Starts with a rule and tells it which workers have joined and whether each one counts."""
        self.rule = rule
        for number, counts in workers.items():
            self.advance(JoinEvent(number) if counts else LeaveEvent(number))

    def push(self, event: PushEvent, gradient: Gradient) -> PendingPush:
        """Takes a push. Its gradient is borrowed until the push is answered.

        Raises:
          RuleError: no honest worker sends this; nothing has changed.
        """
        instructions = self._instructions_for(event, gradient)
        # A push that comes twice, on an old and a new stream, has one answer.
        pending = self._waiting.get((event.worker, event.sequence))
        if pending is None:
            pending = self._waiting[event.worker, event.sequence] = PendingPush(self._runtime.event())
        self._follow(instructions)
        return pending

    def replay(self, event: PushEvent, gradient: Gradient) -> None:
        """Takes a push from another updater, with no worker waiting here. Its gradient is borrowed."""
        self._follow(self._instructions_for(event, gradient))
        self._own((event.worker, event.sequence))

    def _instructions_for(self, event: PushEvent, gradient: Gradient) -> Sequence[Instruction]:
        """The rule's instructions for a push. The gradient of a resent push is already held, or not needed."""
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
        """Takes over one of another updater's `held`. The gradient is kept."""
        self._held[push.worker, push.sequence] = _Held(gradient, push.examples, push.version)

    def detach(self) -> None:
        """Calls `free_all`, and keeps accepted gradients, in their own memory."""
        for key in self._held:
            self._own(key)
        self.free_all()

    def free_all(self) -> None:
        """Releases all waiting pushes; this ps will not answer them."""
        for pending in self._waiting.values():
            pending.answered.set()
        self._waiting.clear()

    def _own(self, key: tuple[int, int]) -> None:
        """Copies a gradient that is still held: its memory will be overwritten."""
        held = self._held.get(key)
        if held is not None:
            held.gradient = tuple(np.array(block) for block in held.gradient)

    def advance(self, event: Event) -> None:
        """Takes any other event."""
        if isinstance(event, LeaveEvent):
            for key in [key for key in self._waiting if key[0] == event.worker]:
                self._waiting.pop(key).answered.set()  # if it is alive, it continues from the params as they are
            self.forget(event.worker)
            for key in self._held:
                if key[0] == event.worker:  # its memory goes with the worker's stream
                    self._own(key)
        self.rule, instructions = self.rule.advance(event)
        self._follow(instructions)

    def waiting(self) -> set[int]:
        """The workers that wait for an answer."""
        return {worker for worker, _ in self._waiting}

    def waiting_for(self) -> frozenset[int]:
        """The workers that others are waiting for."""
        return self.rule.waiting_for()

    def counted(self) -> frozenset[int]:
        """The workers that the rule counts as in the job."""
        return self.rule.ledger.workers

    def seen(self, worker: int) -> int:
        """How many pushes of this worker the rule has seen."""
        return self.rule.ledger.seen.get(worker, 0)

    def share(self, worker: int) -> int:
        """How many parts the next step of this worker should have; 0 if the worker decides."""
        return self.rule.share(worker)

    def held_of(self, worker: int) -> int:
        """How many gradients of this worker wait for their update."""
        return sum(holder == worker for holder, _ in self._held)

    def remember(self, worker: int, version: ParamsVersion) -> None:
        """Remembers the version sent to a worker if delay compensation is on."""
        if self._compensation:
            self.forget(worker)
            version.readers += 1
            self._seen[worker] = version

    def forget(self, worker: int) -> None:
        """Forgets the version sent to this worker."""
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
            workers = self.counted()
            chief = self._state_of if self._state_of in workers or not workers else min(workers)
            sources = [one.gradient for (worker, _), one in zip(keys, held, strict=True) if worker == chief]
            mean = with_state_of(self.shard, mean, sources[0] if sources else None)
        self.shard.update(mean, scale)
        end = self._runtime.clock()
        self.busy_s += end - begin
        for key in keys:
            pending = self._waiting.get(key)
            if pending is not None:
                pending.updated = begin, end
        self._after_update()
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
        self._own((worker, sequence))  # if it is answered before its step is complete
        pending.staleness = staleness
        if pending.outcome == m.APPLIED and not pending.detail:
            self.staleness.add(staleness)
        pending.answered.set()
