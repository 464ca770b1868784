"""What simulated tasks say to each other where the real record would need more than the simulation has."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.simulation.history import PushKey, Update
from trainband.data.leases import LeaseAnswer
from trainband.ps.members import Member
from trainband.ps.rules.base import RuleState
from trainband.wire import replication as r


class Timing(NamedTuple):
    """How long simulated tasks wait, in simulated seconds."""

    heartbeat_s: float = 1.0
    hurry_s: float = 0.25
    lease_s: float = 4.0
    call_s: float = 2.0
    poll_s: float = 0.3
    tick_s: float = 0.25
    retry_s: float = 0.5
    circle_s: float = 1.0


TIMING = Timing()


class Letter(NamedTuple):
    """A control call: who speaks, and what it says (see `trainband.wire.messages`)."""

    task: str
    incarnation: str
    worker: int
    """Its number; -1 before it has joined, and of a ps."""
    body: Any = None


class Values(NamedTuple):
    """The body of `adopt`: the chief has a new ps take the values of a checkpoint."""

    whole_job: bool
    """Whether the job begins here; if not, this ps alone has died and come back, and who is at work will say so."""


class Greeting(NamedTuple):
    """The body of `Joined`, as far as a simulated worker reads it."""

    worker: int
    initialised: bool
    last_sequence: int
    life: str
    fit: int
    epoch: int
    empty: bool
    """Whether it has nothing of the shard: a standby has."""


class Lesson(NamedTuple):
    """A primary teaches the other seat everything; see `trainband.wire.replication.Lesson`."""

    lineage: str
    reign: r.Reign
    position: int
    rule: RuleState
    value: tuple[Update, ...]
    held: dict[tuple[int, int], PushKey]
    fit: int
    last_version: int
    sources: dict[str, bytes]
    asked: dict[tuple[int, str, int], LeaseAnswer]
    seat: str
    """The teacher, for the history."""


class Batch(NamedTuple):
    """Records of the log with the gradients of their pushes."""

    header: r.Records
    gradients: tuple[PushKey | None, ...]


class Took(NamedTuple):
    """A seat has everything up to a record, or takes nothing; see `trainband.wire.replication.Taken`."""

    position: int
    fenced: str = ""
    epoch: int = 0
    """In which it holds the shard itself; 0 where it does not."""


class Session:
    """One training stream, as the ps sees it."""

    __slots__ = ("member", "shard")

    def __init__(self) -> None:
        self.member: Member | None = None
        self.shard = -1
