"""The synchronous rule: every update is the mean of all workers' gradients, each computed from the newest params.

With backup workers the first gradients of a step make the update and the stragglers' are dropped.

Source: Chen et al. 2016, Revisiting Distributed Synchronous SGD (arXiv:1604.00981), and TensorFlow's
SyncReplicasOptimizer. Unlike there, no step waits for a worker that has left, and a worker's place in the sum is
fixed by its number, so that the result does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainband.ps.rules.balance import Balance
from trainband.ps.rules.base import (
    ALL_UPDATES_MADE,
    LATE,
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

BALANCES = (None, "speed")

TWICE = "this step already has a gradient from this worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sync(UpdateRule):
    """Make each update from the mean of the workers' gradients, weighted by their numbers of examples.

    The result is the same to the bit from run to run, and equals that of one process that trains on the union of
    the batches up to float rounding (within 1e-5 of a param after 15 steps of Adam in float32, as tested).

    The first step waits for every worker of the cluster. A worker that leaves is no longer waited for, and one that
    joins later counts from its first push.

    Args:
      backups: how many workers' gradients each step may do without: with N workers, the first N - backups
        make the update; later ones are dropped and counted. With backups, the result depends on which workers
        are fast.
      aggregate: how many gradients make an update, TensorFlow's `replicas_to_aggregate`; by default the number of
        workers less the backups. If there are fewer workers, some give several gradients, each from another
        batch; which ones is fixed.
      balance: `"speed"`: each update has one `batch_size` of examples for every worker of the cluster, and each worker
        computes a share of them in proportion to its measured speed, so that all finish at the same time; the shares
        change when a worker becomes slower or faster, leaves or joins. The mean is still that of all examples, but
        which worker computes which of them, and so the rounding, depends on timing.

    Raises:
      ValueError: negative backups, aggregate under 1, both given, an unknown balance, or balance with one of them.
    """

    backups: int = 0
    aggregate: int | None = None
    balance: str | None = None

    def __post_init__(self) -> None:
        if self.backups < 0:
            raise ValueError(f"Sync.backups must be 0 or more, got {self.backups}.")
        if self.aggregate is not None and self.aggregate < 1:
            raise ValueError(f"Sync.aggregate must be at least 1, got {self.aggregate}.")
        if self.balance not in BALANCES:
            raise ValueError(f"Sync.balance must be 'speed' or None, got {self.balance!r}.")
        for name, value in (("backups", self.backups), ("aggregate", self.aggregate)):
            if self.balance is not None and value:
                raise ValueError(
                    f"Sync: balance={self.balance!r} cannot be combined with {name}={value}: it makes all workers "
                    "finish at the same time and needs all their gradients; leave one of the two out."
                )
        if self.aggregate is not None and self.backups:
            raise ValueError("Sync: give backups or aggregate, not both: each sets how many gradients a step takes.")

    @override
    def settings(self) -> Mapping[str, Setting]:
        plain: dict[str, Setting] = {"name": "sync", "backups": self.backups, "aggregate": self.aggregate}
        return plain if self.balance is None else {**plain, "balance": self.balance}

    @override
    def check(self, workers: int) -> None:
        if self.backups >= workers:
            raise ValueError(
                f"Sync(backups={self.backups}) leaves no gradient to wait for in a cluster of {workers} workers; "
                f"use at most {workers - 1}."
            )

    @override
    def start(self, version: int, workers: int) -> SyncState:
        balance = None if self.balance is None else Balance(workers)
        return SyncState(version, version, self, planned=frozenset(range(workers)), balance=balance)


@dataclass(frozen=True, slots=True)
class SyncState:
    """The `RuleState` of `Sync`.

    Attributes:
      planned: workers of the cluster that have not joined yet; the first step waits for them.
      counted: workers in the job that each step waits for.
      step: the pushes of the step under way, in the order of arrival.
      held: those of them that have no answer yet.
      balance: how the examples of an update are divided; `None`: every worker decides.
    """

    version: int
    last_version: int
    rule: Sync
    planned: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    step: tuple[Push, ...] = ()
    held: tuple[Push, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    balance: Balance | None = None

    def advance(self, event: Event) -> tuple[SyncState, tuple[Instruction, ...]]:
        match event:
            case Push():
                return self._push(event)
            case Join(worker):
                counted = self.counted | {worker} if worker in self.planned else self.counted
                state = replace(self, ledger=self.ledger.join(worker), planned=self.planned - {worker}, counted=counted)
                return state, ()
            case Leave(worker):
                state = replace(
                    self,
                    ledger=self.ledger.leave(worker),
                    planned=self.planned - {worker},
                    counted=self.counted - {worker},
                    held=self._held_by_others(worker),
                )
                state, instructions = state._complete()
                return state._ask_more(instructions)
            case Begin(last_version):
                return replace(self, last_version=last_version)._end_step()

    def waiting_for(self) -> frozenset[int]:
        if not self.held:
            return frozenset()
        return frozenset(worker for worker in self._expected() if self._push_count(worker) < self._quota(worker))

    def share(self, worker: int) -> int:
        return 0 if self.balance is None else self.balance.share(worker)

    def _push(self, push: Push) -> tuple[SyncState, tuple[Instruction, ...]]:
        self.ledger.check(push, self.version)
        if self.balance is not None:
            self.balance.check(push)
        reply = Reply(push.worker, push.sequence, self.version - push.version)
        if self.ledger.is_replay(push):
            if self._is_in_step(push):  # sent again after a reconnection, while its step still waits for others
                if self._push_count(push.worker) < self._quota(push.worker):
                    return self, (reply,)  # for more from this worker
                return replace(self, held=(*self._held_by_others(push.worker), push)), ()
            return self, (self.ledger.known(push), Reply(push.worker, push.sequence, 0))
        state = replace(self, ledger=self.ledger.record(push), counted=self.counted | {push.worker})
        reason = ALL_UPDATES_MADE if self.version >= self.last_version else LATE if push.version < self.version else ""
        if reason:
            return state._without(push), (Drop(push.worker, push.sequence, reason), reply)
        if state._push_count(push.worker) >= state._quota(push.worker) and not state._may_give_several():
            # It left and came back, and its earlier gradient is still in this step.
            state = replace(state, held=(*state._held_by_others(push.worker), push))
            return state._without(push), (Drop(push.worker, push.sequence, TWICE),)
        state = replace(state, step=(*state.step, push))
        if state._push_count(push.worker) < state._quota(push.worker):
            # It must give this step another one, from the same params, so its answer does not wait.
            state, instructions = state._complete()
            return state, (*instructions, reply)
        return replace(state, held=(*state.held, push))._complete()

    def _end_step(self) -> tuple[SyncState, tuple[Instruction, ...]]:
        """Drops the step under way and ends its waits if no more updates are wanted."""
        if self.version < self.last_version or not self.step:
            return self, ()
        drops = tuple(Drop(push.worker, push.sequence, ALL_UPDATES_MADE) for push in self.step)
        replies = tuple(Reply(push.worker, push.sequence, 0) for push in sorted(self.held))
        return replace(self._without(*self.step), step=(), held=()), (*drops, *replies)

    def _complete(self) -> tuple[SyncState, tuple[Instruction, ...]]:
        """Makes the update if all its gradients have arrived."""
        if not self.step or len(self.step) < self._wanted():
            return self, ()
        pushes = sorted((push.worker, push.sequence) for push in self.step)
        replies = tuple(Reply(push.worker, push.sequence, 0) for push in sorted(self.held))
        balance = None if self.balance is None else self.balance.after(self.step, self._expected())
        state = replace(self, version=self.version + 1, step=(), held=(), balance=balance)
        return state, (Apply(tuple(pushes)), *replies)

    def _ask_more(self, before: tuple[Instruction, ...]) -> tuple[SyncState, tuple[Instruction, ...]]:
        """Answers the workers that must give this step more because another has left."""
        more = tuple(push for push in self.held if self._push_count(push.worker) < self._quota(push.worker))
        held = tuple(push for push in self.held if push not in more)
        return replace(self, held=held), (*before, *(Reply(push.worker, push.sequence, 0) for push in more))

    def _held_by_others(self, worker: int) -> tuple[Push, ...]:
        return tuple(push for push in self.held if push.worker != worker)

    def _without(self, *pushes: Push) -> SyncState:
        return replace(self, ledger=self.ledger.drop(pushes))

    def _is_in_step(self, push: Push) -> bool:
        return any((other.worker, other.sequence) == (push.worker, push.sequence) for other in self.step)

    def _may_give_several(self) -> bool:
        return self.rule.aggregate is not None and self.rule.aggregate > len(self._expected())

    def _expected(self) -> frozenset[int]:
        return self.planned | self.counted

    def _wanted(self) -> int:
        """How many gradients make this step: at most what its workers can give."""
        if self.rule.aggregate is not None:
            # Gradients of workers that have left since stay in the step.
            gone = sum(push.worker not in self._expected() for push in self.step)
            return self.rule.aggregate if self._expected() else gone
        present = {push.worker for push in self.step} | self._expected()
        return max(1, len(present) - self.rule.backups)

    def _quota(self, worker: int) -> int:
        """How many gradients this worker gives to a step: one, or its fixed share if more are wanted."""
        expected = sorted(self._expected())
        if not self._may_give_several() or worker not in expected:
            return 1
        assert self.rule.aggregate is not None
        each, more = divmod(self.rule.aggregate, len(expected))
        return each + (expected.index(worker) < more)

    def _push_count(self, worker: int) -> int:
        return sum(push.worker == worker for push in self.step)
