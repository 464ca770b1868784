"""What the two seats of a shard say to each other: lessons, and the records of the log.

See `ps/succession.py` for what it means.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from trainband.data.leases import LeaseRequest

NOBODY = -1


class Reign(Struct, frozen=True, tag=0, array_like=True):
    """Who holds a shard; as a record, from now on. Seats are named by the numbers of their ps."""

    epoch: int = 0
    primary: int = NOBODY
    standby: int = NOBODY
    arbiter: str = ""
    """The incarnation of the worker that decides who succeeds; empty for nobody."""


# --- the records of the log: everything that changes a shard. Workers are named by their numbers.


class Joined(Struct, frozen=True, tag=1, array_like=True):
    """The rule has heard of a worker's coming."""

    worker: int


class Left(Struct, frozen=True, tag=2, array_like=True):
    """The rule has heard of a worker's going."""

    worker: int


class Pushed(Struct, frozen=True, tag=3, array_like=True):
    """The rule has accepted a push; the shard's blocks of the gradient travel with it."""

    worker: int
    sequence: int
    version: int
    examples: int


class Began(Struct, frozen=True, tag=4, array_like=True):
    """A training has begun, or its end has changed."""

    fit: int
    last_version: int
    trainings: tuple[int, ...]


class Leased(Struct, frozen=True, tag=5, array_like=True):
    """A worker has asked for a piece of a shared data source."""

    worker: int
    request: LeaseRequest


class Released(Struct, frozen=True, tag=6, array_like=True):
    """The pieces of a worker that has gone are free; or those `reserved` for one that asks for no more."""

    worker: int
    reserved: bool = False


class Kept(Struct, frozen=True, tag=7, array_like=True):
    """A worker has left luggage."""

    worker: int
    sequence: int
    data: bytes


class Steered(Struct, frozen=True, tag=8, array_like=True):
    """The chief has set a number of the optimizer's state."""

    leaf: int
    value: float


LogRecord = Reign | Joined | Left | Pushed | Began | Leased | Released | Kept | Steered


class Petition(Struct, frozen=True, array_like=True):
    """A seat's request to hold the shard alone, in this epoch.

    `unless_after`: 0, or it is withdrawn where a later epoch than this has been granted to anybody.
    """

    shard: int
    lineage: str
    epoch: int
    seat: int
    arbiter: str
    unless_after: int = 0


class Grant(Struct, frozen=True):
    """`grant` -> `JobState`: the arbiter's word on a petition."""

    worker: int
    incarnation: str
    epoch: int
    yes: bool


class SeatState(Struct, frozen=True, array_like=True):
    """One seat of a shard."""

    shard: int
    seat: int
    """The number of its ps."""
    role: str
    lineage: str
    reign: Reign
    position: int
    version: int
    incarnation: str
    """Of the ps task."""
    host: str = ""
    behind: int = 0
    """Records that the standby has not confirmed; of a primary."""
    petition: Petition | None = None
    fit: int = 0
    """The training under way."""


# --- the headers of the stream from the primary to the other seat


class Lead(Struct, frozen=True, tag=10, array_like=True):
    """primary -> seat, first frame: whose records come."""

    shard: int
    seat: int
    incarnation: str
    number: int = 0
    """Of this stream among all that the primary's process has opened to the seat."""


class HeldPush(Struct, frozen=True, array_like=True):
    """A push that the rule has accepted and not yet applied."""

    worker: int
    sequence: int
    examples: int
    version: int


class Lesson(Struct, frozen=True, tag=11, array_like=True):
    """primary -> seat: everything, as it was after record `position`.

    The body: the params' blocks, the optimizer state's leaves, and the blocks of each held push.
    """

    lineage: str
    reign: Reign
    position: int
    version: int
    rule: Raw
    held: tuple[HeldPush, ...]
    began: Began
    sources: dict[str, bytes]
    luggage: dict[int, tuple[int, bytes]]
    job: str


class Records(Struct, frozen=True, tag=12, array_like=True):
    """primary -> seat: records from number `first` on; the body has the blocks of its pushes, one after the other.

    Without records, a sign of life.
    """

    lineage: str
    epoch: int
    first: int
    version: int
    """Of the shard after them."""
    records: tuple[LogRecord, ...]
    asks: bool = True
    """Whether `Taken` is to be the answer; else only where nothing is taken."""


class Taken(Struct, frozen=True, tag=13, array_like=True):
    """seat -> primary: it has everything up to record `position`; or `fenced`: why it takes nothing."""

    position: int
    fenced: str = ""
    epoch: int = 0
    """In which it holds the shard itself; 0 where it does not."""


Upward = Lead | Lesson | Records
"""What a primary sends."""
