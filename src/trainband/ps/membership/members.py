"""Who is in the job, by lease: a worker that gives no sign of life for a lease is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from trainband.errors import RefusalCode, Refused
from trainband.runtime.signals import EXIT_CODES

BEATS = 3
"""Heartbeats that a worker without a stream must have missed before another process may claim its place."""

GUESTS = 100_000
"""The number of the guest worker:0, were it one; over those of all planned workers."""


class Presence(Enum):
    """What a ps knows of a worker."""

    LIVE = "live"
    LOST = "lost"
    """Its lease ended, or its process died; it may come back."""
    LEFT = "left"
    """It left the job."""
    FAILED = "failed"
    """It left because of an error of its own."""
    PREEMPTED = "preempted"
    """It left because it was asked to end; it may come back."""


@dataclass(slots=True)
class Member:
    """One worker of the job, in one life of its process."""

    number: int
    task: str
    incarnation: str
    host: str
    pid: int
    joined_at: float
    heard_at: float
    presence: Presence = Presence.LIVE
    failure: str = ""
    streams: int = 0
    job: str = ""
    """Which one it belonged to when it joined; empty for one that had not been in any."""
    replaces: frozenset[str] = frozenset()
    """The processes that have had its place before, as long as it has not pushed."""
    paused: bool = False
    """It is in the job, but no rule counts it: its data is used up, until its next push."""
    says_paused: bool = False
    """Whether its last heartbeat said so, and no push has come since."""

    @property
    def live(self) -> bool:
        """Whether the rule counts it."""
        return self.presence is Presence.LIVE


class Members:
    """The book of members. A pure object: the time is an argument, in seconds of any monotonic clock."""

    def __init__(self, lease_s: float, planned: Sequence[str] = (), heartbeat_s: float = float("inf")) -> None:
        """Begins empty.

        `planned`: the workers that the cluster lists; each has its place there as its number, in every life.
        """
        self.lease_s = lease_s
        """Seconds."""
        self._heartbeat_s = heartbeat_s
        self._numbers = {task: number for number, task in enumerate(planned)}
        self._by_number: dict[int, Member] = {}
        self._by_task: dict[str, Member] = {}
        self._replaced: set[str] = set()
        """The processes in whose place another one has pushed since."""

    def __iter__(self) -> Iterator[Member]:
        """The newest member of each task name, in the order of joining."""
        return iter(self._by_task.values())

    def join(self, task: str, incarnation: str, host: str, pid: int, now: float, job: str = "") -> tuple[Member, bool]:
        """Takes a worker in; returns it and whether that is news (not a repeated call).

        `job`: which one it belongs to; empty for one that has not been in any.

        Raises:
          Refused: another live process holds this task's name, or one has pushed under it since this one did: what this
            process still had under way would be taken for that.
        """
        if incarnation in self._replaced:
            raise Refused(
                f"another process has taken the place of {task} in the job, while this one was silent. "
                "Start no more than one process for a task.",
                RefusalCode.REPLACED,
            )
        holder = self._by_task.get(task)
        if holder is not None and holder.incarnation == incarnation:
            news = not holder.live
            holder.presence, holder.heard_at, holder.job = Presence.LIVE, now, job
            return holder, news
        if holder is not None and holder.live and now - holder.heard_at < self._patience_s(holder):
            raise Refused(
                f"{task} is in the job already: process {holder.pid} on {holder.host}, heard "
                f"{now - holder.heard_at:.1f} s ago. Give this process another task index, or end that one first.",
                RefusalCode.NAME_TAKEN,
            )
        before = frozenset() if holder is None else (holder.replaces | {holder.incarnation}) - {incarnation}
        number = self._numbers.setdefault(task, self._guest(task))
        member = Member(number, task, incarnation, host, pid, joined_at=now, heard_at=now, job=job, replaces=before)
        self._by_number[member.number] = member
        self._by_task[task] = member
        return member, True

    def _patience_s(self, holder: Member) -> float:
        """How long a member that was not heard keeps its place when another process claims it.

        Without a stream, which would break off with its process, it is known by its heartbeats alone.
        """
        return self.lease_s if holder.streams else min(self.lease_s, BEATS * self._heartbeat_s)

    @staticmethod
    def _guest(task: str) -> int:
        """The number of a worker that nobody has planned: the same on every ps."""
        return GUESTS + int(task.rpartition(":")[2])

    def name(self, number: int) -> str:
        """The task with this number, whether it has come or not."""
        if number >= GUESTS:
            return f"worker:{number - GUESTS}"
        return next(task for task, other in self._numbers.items() if other == number)

    def pushed(self, member: Member) -> None:
        """Notes that a member has pushed: the processes before it do not come back."""
        if member.replaces:
            self._replaced |= member.replaces
            member.replaces = frozenset()

    def get(self, number: int) -> Member:
        """The member with this number. Raises `Refused` if there is none."""
        member = self._by_number.get(number)
        if member is None:
            raise Refused(
                f"no worker has the number {number} here: this ps has been started since; join again.",
                RefusalCode.UNKNOWN_WORKER,
            )
        return member

    def of(self, incarnation: str) -> Member | None:
        """The newest member of its task that is this process; `None` if none is."""
        return next((member for member in self if member.incarnation == incarnation), None)

    def heard(self, member: Member, now: float) -> bool:
        """Notes a sign of life; returns whether a member that had been lost is back by it."""
        member.heard_at = now
        if member.presence is Presence.LOST and self._by_task.get(member.task) is member:
            member.presence = Presence.LIVE
            return True
        return False

    def has_gone(self, task: str) -> bool:
        """Whether it has come, and is not live."""
        member = self._by_task.get(task)
        return member is not None and not member.live

    def has_left(self, task: str) -> bool:
        """Whether it has left, with nothing wrong."""
        member = self._by_task.get(task)
        return member is not None and member.presence is Presence.LEFT

    def leave(self, member: Member, failure: str) -> bool:
        """Notes that it leaves; returns whether that is news."""
        news = member.live
        if member.presence is not Presence.FAILED:
            asked = failure in EXIT_CODES
            member.presence = Presence.PREEMPTED if asked else Presence.FAILED if failure else Presence.LEFT
            member.failure = "" if asked else failure
        return news

    def lose(self, member: Member) -> bool:
        """Notes a death; returns whether that is news."""
        news = member.live
        if news:
            member.presence = Presence.LOST
        return news

    def expired(self, now: float) -> list[Member]:
        """The live members whose lease has ended by now."""
        return [m for m in self._by_task.values() if m.live and now - m.heard_at >= self.lease_s]

    def of_others(self, job: str) -> list[Member]:
        """The live members that belong to other jobs."""
        return [m for m in self._by_task.values() if m.live and m.job not in ("", job)]

    def live(self) -> list[Member]:
        """The members that the rule counts."""
        return [m for m in self._by_task.values() if m.live]

    def at_work(self) -> list[Member]:
        """Those of them that have not paused."""
        return [m for m in self.live() if not m.paused]

    def are(self, live: Sequence[str], at_work: Sequence[str]) -> bool:
        """Whether another book, of these tasks, says the same."""
        mine = {one.task for one in self.live()}, {one.task for one in self.at_work()}
        return mine == (set(live), set(at_work))
