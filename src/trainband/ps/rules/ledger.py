"""The ledger: every rule's record of its workers' pushes, so that none is applied twice or denied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trainband.ps.rules.events import Known, Push, RuleError

SKIPPED = 1 << 40
"""Upper bound on a worker's pushes that a shard may have missed, for example after a restore from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The workers in the job and the pushes seen. Immutable.

    Attributes:
      workers: those in the job now.
      seen: the number of each worker's last push, also of workers that have gone: one that returns resumes from it.
      dropped: the workers whose last push was dropped. That of any other is in an update, or waits for one.
    """

    workers: frozenset[int] = frozenset()
    seen: Mapping[int, int] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()

    def join(self, worker: int) -> Ledger:
        """A copy with this worker."""
        return replace(self, workers=self.workers | {worker})

    def leave(self, worker: int) -> Ledger:
        """A copy without it."""
        return replace(self, workers=self.workers - {worker})

    def check(self, push: Push, version: int) -> None:
        """Refuses a push that no honest worker sends.

        Raises:
          RuleError: the worker is not in the job, or claims an unknown version or push number.
        """
        if push.worker not in self.workers:
            raise RuleError(f"a push came from worker number {push.worker}, which is not in the job")
        if not 0 <= push.version <= version:
            raise RuleError(f"a push claims params of version {push.version}, but the version is {version}")
        if push.sequence - self.seen.get(push.worker, 0) > SKIPPED:
            raise RuleError(f"a push claims to be number {push.sequence} of its worker")

    def is_replay(self, push: Push) -> bool:
        """Whether this push was dealt with before, for example if it is resent after a reconnection."""
        return push.sequence <= self.seen.get(push.worker, -1)

    def known(self, push: Push) -> Known:
        """The outcome of a resent push that no longer waits."""
        is_last = push.sequence == self.seen.get(push.worker)
        return Known(push.worker, push.sequence, is_last and push.worker not in self.dropped)

    def record(self, push: Push) -> Ledger:
        """A copy with this push seen."""
        return Ledger(self.workers, {**self.seen, push.worker: push.sequence}, self.dropped - {push.worker})

    def drop(self, pushes: Iterable[Push]) -> Ledger:
        """A copy with these dropped, each its worker's last seen push or an earlier one."""
        last = {push.worker for push in pushes if push.sequence == self.seen.get(push.worker)}
        return replace(self, dropped=self.dropped | last)
