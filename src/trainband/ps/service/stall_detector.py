"""StallDetector: finds live workers that make no progress. Called under the service's lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainband.ps.membership.accounts import Account
from trainband.ps.membership.members import Member, Members
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.runtime import Clock
from trainband.runtime.waiting import Say

DEADLOCK_S = 1.0
"""Seconds that a deadlock between workers must last to count: their reports may be stale."""

SILENT_S = 30.0
"""Seconds without a push before a warning."""

MUCH = 5.0
"""Multiple of its usual time that an unawaited worker may take before a warning."""


class Stuck(NamedTuple):
    """A live worker that pushes nothing.

    Attributes:
      silent_s: for how long.
      awaited: whether others wait for it.
    """

    silent_s: float
    awaited: bool


@dataclass(eq=False)
class StallDetector:
    """Detector of stuck workers at a ps.

    Args:
      set_aside: ignores a worker until its next push.
      moved_s: seconds since a part of a worker's frame moved; infinite if none is under way.
      clock: seconds, monotonic.
    """

    _members: Members
    _accounts: Mapping[int, Account]
    _replicas: Mapping[int, ShardReplica]
    _set_aside: Callable[[Member], None]
    _moved_s: Callable[[Member], float]
    _say: Say
    _clock: Clock

    def stalled(self, after_s: float | None = None) -> dict[int, Stuck]:
        """Returns live workers that have pushed nothing for `after_s`, by number.

        Others wait for such a worker; or it waits for no one, in a training run, and has taken five times as long as
        usual.
        """
        after_s = SILENT_S if after_s is None else after_s
        replicas = [replica for replica in self._replicas.values() if replica.is_primary]
        training_since = min(
            (replica.held_since for replica in replicas if replica.training.fit and not replica.complete), default=None
        )
        awaited_since: dict[str, float] = {}
        for replica in replicas:
            for task in replica.waiting_for():
                awaited_since[task] = min(replica.held_since, awaited_since.get(task, replica.held_since))
        waiting = {number for replica in replicas for number in replica.require_updater().waiting()}
        found = {}
        for member in self._members.at_work():
            account, since = self._accounts[member.number], awaited_since.get(member.task, training_since)
            awaited = member.task in awaited_since
            waits = member.number in waiting or bool(account.blocked_by)
            if since is None or (waits and not awaited):
                continue
            silent_s = min(
                self._clock() - max(account.pushed_at, member.joined_at, since),
                self._moved_s(member),  # its push or its params may travel for minutes
            )
            if silent_s >= (after_s if awaited else max(after_s, MUCH * account.usual_s)):
                found[member.number] = Stuck(silent_s, awaited)
        return found

    def handle_stalled(self, limit_s: float) -> None:
        """Warns of stuck workers, and ignores an awaited one after `limit_s` seconds unless that is 0."""
        for number, stuck in self.stalled(min(SILENT_S, limit_s or SILENT_S)).items():
            member, account = self._members.get(number), self._accounts[number]
            text = f"{member.task} is alive but has pushed nothing for {stuck.silent_s:.0f} s"
            if stuck.awaited and limit_s and stuck.silent_s >= limit_s:
                self._say(f"{text}; it is ignored until its next push")
                self._set_aside(member)
            elif stuck.silent_s >= SILENT_S and self._clock() - account.said_at >= SILENT_S:
                account.said_at = self._clock()
                self._say(f"{text}; {'others wait for it' if stuck.awaited else 'no one waits for it'}")

    def break_deadlocks(self) -> None:
        """Breaks deadlocks of workers that wait for one another at different ps.

        These arise when only one ps loses a worker for a moment.
        """
        numbers = {member.task: member.number for member in self._members}
        blocked_by = {
            member.number: [numbers[task] for task in self._accounts[member.number].blocked_by if task in numbers]
            for member in self._members.live()
        }
        updaters = [replica.require_updater() for replica in self._replicas.values() if replica.is_primary]
        deadlocked = {
            number for one in updaters for number in deadlocked_of(one.waiting(), one.waiting_for(), blocked_by)
        }
        for member in self._members.live():
            account, now = self._accounts[member.number], self._clock()
            if member.number not in deadlocked:
                account.deadlocked_since = None
            elif account.deadlocked_since is None:
                account.deadlocked_since = now
            elif now - account.deadlocked_since >= DEADLOCK_S:
                self._say(
                    f"deadlock between {member.task} and another worker; this step proceeds without {member.task}"
                )
                self._set_aside(member)
                account.deadlocked_since = None


def deadlocked_of(
    waiting: Collection[int], waited_for: Collection[int], blocked_by: Mapping[int, Collection[int]]
) -> set[int]:
    """Returns the workers that a ps waits for and that wait elsewhere for one waiting here: none can continue.

    `blocked_by`: for each worker, those that it waits for at other ps.
    """
    found = set()
    for worker in waited_for:
        seen, front = {worker}, [worker]
        while front:
            front = [other for one in front for other in blocked_by.get(one, ()) if other not in seen]
            seen.update(front)
        if seen & set(waiting) - {worker}:
            found.add(worker)
    return found
