"""Who is in the job, by lease: a worker that is silent for a lease is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from trainband.errors import RefusalCode, Refused
from trainband.runtime.formatting import one_line, printable
from trainband.runtime.signals import EXIT_CODES
from trainband.wire.limits import LIMITS, Limits
from trainband.wire.messages.fields import ELASTIC_BASE
from trainband.wire.messages.replication import arbiter_name

BEATS = 3
"""Heartbeats that a worker without a stream must miss before another process may claim its place."""

FORMER = 64
"""How many of the last processes that had a member's place are remembered: they may come back."""


class Presence(Enum):
    """The state of a worker, as a ps knows it."""

    LIVE = "live"
    LOST = "lost"
    """Its lease expired or its process died; it may come back."""
    LEFT = "left"
    """It left the job."""
    FAILED = "failed"
    """It left because of its own error."""
    PREEMPTED = "preempted"
    """It left because it was asked to end; it may come back."""


@dataclass(slots=True)
class Member:
    """One process of one worker of the job."""

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
    """The job it belonged to when it joined; empty if none."""
    replaces: tuple[str, ...] = ()
    """The last `FORMER` processes that had its place before; empty once it has pushed."""
    paused: bool = False
    """In the job, but not counted by the rule until its next push: its data is used up."""
    reports_paused: bool = False
    """Whether its last heartbeat reported a pause and no push has come since."""
    last_contact_at: float = 0.0
    """When it was last heard, even after it left: it stays for a while to decide who holds a shard."""

    @property
    def live(self) -> bool:
        """Whether the rule counts it."""
        return self.presence is Presence.LIVE

    @property
    def has_left(self) -> bool:
        """Whether it left by its own word: nothing that it sends later brings it back."""
        return self.presence not in (Presence.LIVE, Presence.LOST)


class Members:
    """The members of the job. Pure: the time is an argument, in seconds of any monotonic clock."""

    def __init__(
        self, lease_s: float, planned: Sequence[str] = (), heartbeat_s: float = float("inf"), limits: Limits = LIMITS
    ) -> None:
        """Starts empty.

        `planned`: the cluster's workers; each one's place in the list is its number, in every process.
        `limits`: how many elastic workers and replaced processes are remembered.
        """
        self.lease_s = lease_s
        """Seconds."""
        self._heartbeat_s = heartbeat_s
        self._limits = limits
        self._numbers = {task: number for number, task in enumerate(planned)}
        self._planned = tuple(planned)
        self._first_elastic = 1 + max((_index(task) for task in planned if task.startswith("worker:")), default=-1)
        self._by_number: dict[int, Member] = {}
        self._by_task: dict[str, Member] = {}
        self._replaced: dict[str, None] = {}
        """The last processes to be replaced by one that has pushed, in order."""

    def __iter__(self) -> Iterator[Member]:
        """The newest member of each task name, in the order of joining."""
        return iter(self._by_task.values())

    def join(self, task: str, incarnation: str, host: str, pid: int, now: float, job: str = "") -> tuple[Member, bool]:
        """Adds a worker; returns it and whether that is news (not a repeated call).

        `job`: the one it belongs to; empty if none.

        Raises:
          Refused: another live process holds this task's name, or has pushed under it since this one did: messages of
            this process still under way would be taken for its. Or the cluster has no such worker, nor room for it.
            Nothing has changed.
        """
        number = self._number_of(task)
        if incarnation in self._replaced:
            raise Refused(
                f"another process has taken the place of {task} in the job while this one was silent. "
                "Start only one process for each task.",
                RefusalCode.REPLACED,
            )
        holder = self._by_task.get(task)
        if holder is not None and holder.incarnation == incarnation:
            news = not holder.live
            holder.presence, holder.heard_at, holder.job = Presence.LIVE, now, job
            return holder, news
        if holder is not None and holder.live and now - holder.heard_at < self._patience_s(holder):
            raise Refused(
                f"{task} is already in the job: process {holder.pid} on {holder.host}, last heard from "
                f"{now - holder.heard_at:.1f} s ago. Give this process another task index, or end that one first.",
                RefusalCode.NAME_TAKEN,
            )
        if holder is None and number >= ELASTIC_BASE:
            self._make_room(task)
        before: tuple[str, ...] = ()
        if holder is not None:
            others = dict.fromkeys(one for one in (*holder.replaces, holder.incarnation) if one != incarnation)
            before = tuple(others)[-FORMER:]
        member = Member(number, task, incarnation, host, pid, joined_at=now, heard_at=now, job=job, replaces=before)
        self._by_number[member.number] = member
        self._by_task[task] = member
        return member, True

    def _patience_s(self, holder: Member) -> float:
        """Seconds that a silent member keeps its place when another process claims it.

        Without a stream, which would break with its process, only heartbeats show that it is alive.
        """
        return self.lease_s if holder.streams else min(self.lease_s, BEATS * self._heartbeat_s)

    def _number_of(self, task: str) -> int:
        """The number of a worker. An elastic worker has the same number on every ps."""
        planned = self._numbers.get(task)
        if planned is not None:
            return planned
        index = _index(task)
        if not task.startswith("worker:") or not self._first_elastic <= index <= self._limits.worker_index:
            raise Refused(
                f"{printable(task, 40)} is not a worker of this cluster, and an elastic worker has an index "
                f"from {self._first_elastic} to {self._limits.worker_index}; see trainband run --join."
            )
        return ELASTIC_BASE + index

    def _make_room(self, task: str) -> None:
        """Forgets elastic workers that have gone, longest silent first, until there is room for one more."""
        elastic = [member for member in self if member.number >= ELASTIC_BASE]
        gone = [member for member in elastic if not member.live and not member.streams]
        gone.sort(key=lambda member: member.heard_at)
        for member in gone[: max(0, len(elastic) + 1 - self._limits.elastic_workers)]:
            del self._by_task[member.task], self._by_number[member.number]
        if sum(member.number >= ELASTIC_BASE for member in self) >= self._limits.elastic_workers:
            raise Refused(
                f"there is no room for {task}: {self._limits.elastic_workers} elastic workers are in the job."
            )

    def name(self, number: int) -> str:
        """The task with this number, whether it has joined or not."""
        if number < len(self._planned):
            return self._planned[number]
        return f"worker:{number - ELASTIC_BASE if number >= ELASTIC_BASE else number}"

    def pushed(self, member: Member) -> None:
        """Records that a member has pushed: the processes before it may not come back."""
        if member.replaces:
            self._replaced.update(dict.fromkeys(member.replaces))
            member.replaces = ()
            while len(self._replaced) > self._limits.replaced:
                del self._replaced[next(iter(self._replaced))]

    def get(self, number: int) -> Member:
        """The member with this number. Raises `Refused` if there is none."""
        member = self._by_number.get(number)
        if member is None:
            raise Refused(
                f"no worker has the number {number} here: this ps was restarted; join again.",
                RefusalCode.UNKNOWN_WORKER,
            )
        return member

    def get_process(self, number: int, incarnation: str) -> Member:
        """The member with this number. Raises `Refused` if there is none, or it is another process."""
        member = self.get(number)
        if member.incarnation != incarnation:
            raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
        return member

    def of(self, incarnation: str) -> Member | None:
        """The newest member of its task that is this process; `None` if none is."""
        return next((member for member in self if member.incarnation == incarnation), None)

    def arbiter(self, name: str) -> Member | None:
        """The newest member of its task that is this arbiter; `None` if none is."""
        return next((member for member in self if arbiter_name(member.incarnation) == name), None)

    def record_contact(self, member: Member, now: float) -> bool:
        """Records a sign of life; returns whether it brings back a lost member.

        It does not bring back one that has left.
        """
        member.last_contact_at = now
        if member.has_left:
            return False
        member.heard_at = now
        if member.presence is Presence.LOST and self._by_task.get(member.task) is member:
            member.presence = Presence.LIVE
            return True
        return False

    def has_gone(self, task: str) -> bool:
        """Whether it has joined and is not live."""
        member = self._by_task.get(task)
        return member is not None and not member.live

    def has_left(self, task: str) -> bool:
        """Whether it has left without an error."""
        member = self._by_task.get(task)
        return member is not None and member.presence is Presence.LEFT

    def leave(self, member: Member, failure: str) -> bool:
        """Records that it leaves; returns whether that is news."""
        news = member.live
        if member.presence is not Presence.FAILED:
            asked = failure in EXIT_CODES
            member.presence = Presence.PREEMPTED if asked else Presence.FAILED if failure else Presence.LEFT
            member.failure = "" if asked else one_line(failure, self._limits.failure_length)
        return news

    def lose(self, member: Member) -> bool:
        """Records its loss; returns whether that is news."""
        news = member.live
        if news:
            member.presence = Presence.LOST
        return news

    def expired(self, now: float) -> list[Member]:
        """The live members whose lease has expired."""
        return [m for m in self._by_task.values() if m.live and now - m.heard_at >= self.lease_s]

    def of_others(self, job: str) -> list[Member]:
        """The live members that belong to other jobs."""
        return [m for m in self._by_task.values() if m.live and m.job not in ("", job)]

    def live(self) -> list[Member]:
        """The members that the rule counts."""
        return [m for m in self._by_task.values() if m.live]

    def at_work(self) -> list[Member]:
        """The live members that have not paused."""
        return [m for m in self.live() if not m.paused]

    def are(self, live: Sequence[str], at_work: Sequence[str]) -> bool:
        """Whether exactly these tasks are live and at work."""
        mine = {one.task for one in self.live()}, {one.task for one in self.at_work()}
        return mine == (set(live), set(at_work))


def _index(task: str) -> int:
    """The index in a task's name; -1 if it has no valid one."""
    digits = task.rpartition(":")[2]
    return int(digits) if len(digits) <= 6 and digits.isascii() and digits.isdecimal() else -1
