"""Who is in the job, by lease: a worker that gives no sign of life for a lease is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from trainband.errors import RefusalCode, Refused
from trainband.runtime.formatting import printable
from trainband.runtime.signals import EXIT_CODES
from trainband.wire.fields import GUESTS
from trainband.wire.limits import LIMITS, Limits
from trainband.wire.replication import arbiter_name

BEATS = 3
"""Heartbeats that a worker without a stream must have missed before another process may claim its place."""

FORMER = 64
"""Processes that have had a member's place before it and may come back: as many of the last are known."""


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
    replaces: tuple[str, ...] = ()
    """The processes that have had its place before, as long as it has not pushed; the last `FORMER` of them."""
    paused: bool = False
    """It is in the job, but no rule counts it: its data is used up, until its next push."""
    says_paused: bool = False
    """Whether its last heartbeat said so, and no push has come since."""
    last_word_at: float = 0.0
    """When it was heard last, be it after it had left: it stays for a while to decide who holds a shard."""

    @property
    def live(self) -> bool:
        """Whether the rule counts it."""
        return self.presence is Presence.LIVE

    @property
    def has_left(self) -> bool:
        """Whether it has gone by its own word: nothing that it says later brings it back."""
        return self.presence not in (Presence.LIVE, Presence.LOST)


class Members:
    """The book of members. A pure object: the time is an argument, in seconds of any monotonic clock."""

    def __init__(
        self,
        lease_s: float,
        planned: Sequence[str] = (),
        heartbeat_s: float = float("inf"),
        limits: Limits = LIMITS,
    ) -> None:
        """Begins empty.

        `planned`: the workers that the cluster lists; each has its place there as its number, in every life.
        `limits`: how many guests, and how many processes that were replaced, are known.
        """
        self.lease_s = lease_s
        """Seconds."""
        self._heartbeat_s = heartbeat_s
        self._limits = limits
        self._numbers = {task: number for number, task in enumerate(planned)}
        self._planned = tuple(planned)
        self._first_guest = 1 + max((_index(task) for task in planned if task.startswith("worker:")), default=-1)
        self._by_number: dict[int, Member] = {}
        self._by_task: dict[str, Member] = {}
        self._replaced: dict[str, None] = {}
        """The processes in whose place another one has pushed since, in that order; the last ones."""

    def __iter__(self) -> Iterator[Member]:
        """The newest member of each task name, in the order of joining."""
        return iter(self._by_task.values())

    def join(self, task: str, incarnation: str, host: str, pid: int, now: float, job: str = "") -> tuple[Member, bool]:
        """Takes a worker in; returns it and whether that is news (not a repeated call).

        `job`: which one it belongs to; empty for one that has not been in any.

        Raises:
          Refused: another live process holds this task's name, or one has pushed under it since this one did: what this
            process still had under way would be taken for that. Or the cluster has no such worker, nor a place for it.
            Nothing has changed.
        """
        number = self._number_of(task)
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
        if holder is None and number >= GUESTS:
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
        """How long a member that was not heard keeps its place when another process claims it.

        Without a stream, which would break off with its process, it is known by its heartbeats alone.
        """
        return self.lease_s if holder.streams else min(self.lease_s, BEATS * self._heartbeat_s)

    def _number_of(self, task: str) -> int:
        """The number of a worker. One that nobody has planned has the same on every ps."""
        planned = self._numbers.get(task)
        if planned is not None:
            return planned
        index = _index(task)
        if not task.startswith("worker:") or not self._first_guest <= index <= self._limits.worker_index:
            raise Refused(
                f"{printable(task, 40)} is no worker of this cluster, and one that joins from outside has an index "
                f"from {self._first_guest} to {self._limits.worker_index}; see trainband run --join."
            )
        return GUESTS + index

    def _make_room(self, task: str) -> None:
        """Forgets guests that have gone, the first of them first, until there is room for one more."""
        guests = [member for member in self if member.number >= GUESTS]
        gone = [member for member in guests if not member.live and not member.streams]
        gone.sort(key=lambda member: member.heard_at)
        for member in gone[: max(0, len(guests) + 1 - self._limits.guests)]:
            del self._by_task[member.task], self._by_number[member.number]
        if sum(member.number >= GUESTS for member in self) >= self._limits.guests:
            raise Refused(f"there is no place for {task}: {self._limits.guests} workers from outside are in the job.")

    def name(self, number: int) -> str:
        """The task with this number, whether it has come or not."""
        if number < len(self._planned):
            return self._planned[number]
        return f"worker:{number - GUESTS if number >= GUESTS else number}"

    def pushed(self, member: Member) -> None:
        """Notes that a member has pushed: the processes before it do not come back."""
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
                f"no worker has the number {number} here: this ps has been started since; join again.",
                RefusalCode.UNKNOWN_WORKER,
            )
        return member

    def get_process(self, number: int, incarnation: str) -> Member:
        """The member with this number, as itself. Raises `Refused` if there is none, or it is another process."""
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

    def heard(self, member: Member, now: float) -> bool:
        """Notes a sign of life; returns whether a member that had been lost is back by it.

        One that has left does not live because of what it still says.
        """
        member.last_word_at = now
        if member.has_left:
            return False
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
            member.failure = "" if asked else printable(failure, self._limits.failure_length, newline="\n")
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


def _index(task: str) -> int:
    """The index in a task's name; -1 where it has none that can be one."""
    digits = task.rpartition(":")[2]
    return int(digits) if len(digits) <= 6 and digits.isascii() and digits.isdecimal() else -1
