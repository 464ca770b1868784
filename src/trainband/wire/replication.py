"""What the two replicas of a shard say to each other: snapshots, and the records of the log.

See `ps/failover.py` for what it means.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from trainband.data.leases import LeaseRequest

NOBODY = -1


class Term(Struct, frozen=True, tag=0, array_like=True):
    """Who holds a shard; as a record, from now on. Replicas are named by the numbers of their ps."""

    number: int = 0
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
    """A worker has left worker state."""

    worker: int
    sequence: int
    data: bytes


class Steered(Struct, frozen=True, tag=8, array_like=True):
    """The chief has set a number of the optimizer's state."""

    leaf: int
    value: float


LogRecord = Term | Joined | Left | Pushed | Began | Leased | Released | Kept | Steered


class VoteRequest(Struct, frozen=True, array_like=True):
    """A replica's request to hold the shard alone, in this term.

    `unless_after`: 0, or it is withdrawn where a later term than this has been granted to anybody.
    """

    shard: int
    lineage: str
    term: int
    ps: int
    arbiter: str
    unless_after: int = 0


class Vote(Struct, frozen=True):
    """`grant` -> `JobState`: the arbiter's word on a vote request."""

    worker: int
    incarnation: str
    term: int
    yes: bool


class ReplicaState(Struct, frozen=True, array_like=True):
    """One replica of a shard."""

    shard: int
    ps: int
    """The number of its ps."""
    role: str
    lineage: str
    term: Term
    position: int
    version: int
    incarnation: str
    """Of the ps task."""
    host: str = ""
    behind: int = 0
    """Records that the standby has not confirmed; of a primary."""
    vote_request: VoteRequest | None = None
    fit: int = 0
    """The training under way."""


# --- the headers of the stream from the primary to the other replica


class ReplicationHello(Struct, frozen=True, tag=10, array_like=True):
    """primary -> standby, first frame: whose records come. `ps`: the number of the primary's."""

    shard: int
    ps: int
    incarnation: str
    number: int = 0
    """Of this stream among all that the primary's process has opened to the replica."""


class HeldPush(Struct, frozen=True, array_like=True):
    """A push that the rule has accepted and not yet applied."""

    worker: int
    sequence: int
    examples: int
    version: int


class InstallSnapshot(Struct, frozen=True, tag=11, array_like=True):
    """primary -> replica: everything, as it was after record `position`.

    The body: the params' blocks, the optimizer state's leaves, and the blocks of each held push.
    """

    lineage: str
    term: Term
    position: int
    version: int
    rule: Raw
    held: tuple[HeldPush, ...]
    began: Began
    sources: dict[str, bytes]
    worker_state: dict[int, tuple[int, bytes]]
    job: str


class Records(Struct, frozen=True, tag=12, array_like=True):
    """primary -> replica: records from number `first` on; the body has the blocks of its pushes, one after the other.

    Without records, a sign of life.
    """

    lineage: str
    term: int
    first: int
    version: int
    """Of the shard after them."""
    records: tuple[LogRecord, ...]
    asks: bool = True
    """Whether `Taken` is to be the answer; else only where nothing is taken."""


class Taken(Struct, frozen=True, tag=13, array_like=True):
    """replica -> primary: it has everything up to record `position`; or `fenced`: why it takes nothing."""

    position: int
    fenced: str = ""
    term: int = 0
    """In which it holds the shard itself; 0 where it does not."""


Upward = ReplicationHello | InstallSnapshot | Records
"""What a primary sends."""
