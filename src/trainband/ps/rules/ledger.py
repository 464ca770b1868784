"""The ledger: what every rule must remember of its workers, so that no push is applied twice, or denied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from trainband.ps.rules.events import Known, Push, RuleError

SKIPPED = 1 << 40
"""Pushes of a worker that a shard may have missed, as where it was restored from a checkpoint: more than there are."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Who is in the job, and which pushes were seen. Immutable.

    Attributes:
      workers: who is in the job now.
      seen: the number of the last push of every worker that ever was: one that is lost and found resumes from it.
      dropped: the workers whose last push was dropped. That of any other is in an update, or waits for one.
    """

    workers: frozenset[int] = frozenset()
    seen: Mapping[int, int] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()

    def join(self, worker: int) -> Ledger:
        """With this worker in the job."""
        return replace(self, workers=self.workers | {worker})

    def leave(self, worker: int) -> Ledger:
        """Without it."""
        return replace(self, workers=self.workers - {worker})

    def check(self, push: Push, version: int) -> None:
        """Refuses what no honest worker sends.

        Raises:
          RuleError: the worker is not in the job, or claims params that never were.
        """
        if push.worker not in self.workers:
            raise RuleError(f"a push came from worker number {push.worker}, which is not in the job")
        if not 0 <= push.version <= version:
            raise RuleError(f"a push claims params of version {push.version}, but the version is {version}")
        if push.sequence - self.seen.get(push.worker, 0) > SKIPPED:
            raise RuleError(f"a push claims to be number {push.sequence} of its worker")

    def is_replay(self, push: Push) -> bool:
        """Whether this push was dealt with before, as one that is sent again after a reconnection."""
        return push.sequence <= self.seen.get(push.worker, -1)

    def known(self, push: Push) -> Known:
        """What became of a push that is sent again, and waits for nothing any more."""
        is_last = push.sequence == self.seen.get(push.worker)
        return Known(push.worker, push.sequence, is_last and push.worker not in self.dropped)

    def note(self, push: Push) -> Ledger:
        """With this push seen."""
        return Ledger(self.workers, {**self.seen, push.worker: push.sequence}, self.dropped - {push.worker})

    def drop(self, pushes: Iterable[Push]) -> Ledger:
        """With these dropped, each the last that was seen of its worker, or an earlier one."""
        last = {push.worker for push in pushes if push.sequence == self.seen.get(push.worker)}
        return replace(self, dropped=self.dropped | last)
