"""StallDetector: a look, now and then, at workers that live and do not get on. Called under the service's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from trainband.ps.membership.accounts import Account
from trainband.ps.membership.members import Member, Members
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.runtime import Clock
from trainband.runtime.waiting import Say

DEADLOCK_S = 1.0
"""How long a deadlock of workers that wait for one another must have been seen: what they say of it may be old."""

SILENT_S = 30.0
"""Without a push after which a worker is named."""

MUCH = 5.0
"""Times as long as usual, after which a worker is named that nobody waits for."""


class Stuck(NamedTuple):
    """A worker that lives and pushes nothing.

    Attributes:
      silent_s: for how long.
      awaited: whether others wait for it.
    """

    silent_s: float
    awaited: bool


class StallDetector:
    """Looks after the workers of one ps.

    Args:
      members: who is in the job.
      accounts: what each worker has done, by number.
      replicas: of the ps, by shard.
      set_aside: counts a worker no more until its next push.
      say: where lines for people go.
      clock: seconds, monotonic.
    """

    def __init__(
        self,
        members: Members,
        accounts: Mapping[int, Account],
        replicas: Mapping[int, ShardReplica],
        set_aside: Callable[[Member], None],
        say: Say,
        clock: Clock,
    ) -> None:
        self._members = members
        self._accounts = accounts
        self._replicas = replicas
        self._set_aside = set_aside
        self._say = say
        self._clock = clock

    def stalled(self, after_s: float | None = None) -> dict[int, Stuck]:
        """The workers that live and have pushed nothing for so long, by number.

        That is one that others wait for; or one that takes five times as long as it mostly does, in a training, and
        waits for nobody.
        """
        after_s = SILENT_S if after_s is None else after_s
        replicas = [replica for replica in self._replicas.values() if replica.is_primary]
        training_since = min(
            (replica.held_since for replica in replicas if replica.fit and not replica.complete), default=None
        )
        awaited_since: dict[str, float] = {}
        for replica in replicas:
            for task in replica.waiting_for():
                awaited_since[task] = min(replica.held_since, awaited_since.get(task, replica.held_since))
        waiting = {
            number for replica in replicas if replica.updater is not None for number in replica.updater.waiting()
        }
        found = {}
        for member in self._members.at_work():
            account, since = self._accounts[member.number], awaited_since.get(member.task, training_since)
            awaited = member.task in awaited_since
            waits = member.number in waiting or bool(account.blocked_by)
            if since is None or (waits and not awaited):
                continue
            silent_s = self._clock() - max(account.pushed_at, member.joined_at, since)
            if silent_s >= (after_s if awaited else max(after_s, MUCH * account.usual_s)):
                found[member.number] = Stuck(silent_s, awaited)
        return found

    def handle_stalled(self, limit_s: float) -> None:
        """Names the workers that are stuck, and waits no more for one after `limit_s` seconds, if that is not 0."""
        for number, stuck in self.stalled(min(SILENT_S, limit_s or SILENT_S)).items():
            member, account = self._members.get(number), self._accounts[number]
            text = f"{member.task} lives, but has pushed nothing for {stuck.silent_s:.0f} s"
            if stuck.awaited and limit_s and stuck.silent_s >= limit_s:
                self._say(f"{text}: it counts no more until it does")
                self._set_aside(member)
            elif stuck.silent_s >= SILENT_S and self._clock() - account.said_at >= SILENT_S:
                account.said_at = self._clock()
                self._say(f"{text}; {'others wait for it' if stuck.awaited else 'nobody waits for it'}")

    def break_deadlocks(self) -> None:
        """Lets workers go on that wait for one another, each at another ps.

        That comes of a worker which one ps has lost for a moment, and the others have not.
        """
        numbers = {member.task: member.number for member in self._members}
        blocked_by = {
            member.number: [numbers[task] for task in self._accounts[member.number].blocked_by if task in numbers]
            for member in self._members.live()
        }
        deadlocked = {number for replica in self._replicas.values() for number in replica.deadlocked(blocked_by)}
        for member in self._members.live():
            account, now = self._accounts[member.number], self._clock()
            if member.number not in deadlocked:
                account.deadlocked_since = None
            elif account.deadlocked_since is None:
                account.deadlocked_since = now
            elif now - account.deadlocked_since >= DEADLOCK_S:
                self._say(f"{member.task} waits elsewhere for a worker that waits for it here: this step goes without")
                self._set_aside(member)
                account.deadlocked_since = None
