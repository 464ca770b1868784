"""Messages between the two replicas of a shard: snapshots, and the records of the log.

See `ps/replication/failover.py` for their meaning.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from trainband.data.leases import LeaseRequest
from trainband.wire.limits import LIMITS, MIB
from trainband.wire.messages import fields as f
from trainband.wire.messages.workload import Workload

NOBODY = -1


@lru_cache(maxsize=4096)
def arbiter_name(incarnation: str) -> str:
    """Returns the public name of a worker's process as an arbiter, which does not reveal its incarnation."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[:16]


class Term(Struct, frozen=True, tag=0, array_like=True):
    """The holders of a shard; as a record, from now on. Replicas are named by the numbers of their ps."""

    number: f.TermNumber = 0
    primary: f.PsOrNobody = NOBODY
    standby: f.PsOrNobody = NOBODY
    arbiter: f.Token = ""
    """The worker process that decides the succession, see `arbiter_name`; empty for none."""


# The records of the log: every change of a shard. Workers are named by their numbers.


class Joined(Struct, frozen=True, tag=1, array_like=True):
    """The rule has been told that a worker joined."""

    worker: f.WorkerNumber


class Left(Struct, frozen=True, tag=2, array_like=True):
    """The rule has been told that a worker left."""

    worker: f.WorkerNumber


class Pushed(Struct, frozen=True, tag=3, array_like=True):
    """The rule has accepted a push; the shard's blocks of the gradient travel with it."""

    worker: f.WorkerNumber
    sequence: f.Sequence
    version: f.Version
    examples: f.Examples
    workload: Workload | None = None


class Began(Struct, frozen=True, tag=4, array_like=True):
    """A training run has begun, or its end has changed."""

    fit: f.Fit
    last_version: f.Version
    trainings: f.Trainings


class Leased(Struct, frozen=True, tag=5, array_like=True):
    """A worker has asked for a piece of a shared data source."""

    worker: f.WorkerNumber
    request: LeaseRequest


class Released(Struct, frozen=True, tag=6, array_like=True):
    """The pieces of a worker that has left are free; or its `reserved` ones, as it requests no further pieces."""

    worker: f.WorkerNumber
    reserved: bool = False


class Kept(Struct, frozen=True, tag=7, array_like=True):
    """A worker has sent its worker state."""

    worker: f.WorkerNumber
    sequence: f.Sequence
    data: f.WorkerStateData


class Steered(Struct, frozen=True, tag=8, array_like=True):
    """The chief has set a number of the optimizer's state."""

    leaf: f.StateLeaf
    value: float


class Assigned(Struct, frozen=True, tag=9, array_like=True):
    """A worker has set or added to slices; blocks in the layout of the params travel with it."""

    replaced: f.SliceNumbers
    added: f.SliceNumbers


LogRecord = Term | Joined | Left | Pushed | Began | Leased | Released | Kept | Steered | Assigned


class VoteRequest(Struct, frozen=True, array_like=True):
    """A replica's request to hold the shard alone, in this term.

    `unless_after`: if nonzero, the request lapses if a term later than this has been granted.
    """

    shard: f.PsNumber
    lineage: f.Token
    term: f.TermNumber
    ps: f.PsNumber
    arbiter: f.Token
    unless_after: f.TermNumber = 0


class Vote(Struct, frozen=True):
    """`vote` -> `JobState`: the arbiter's decision on a vote request."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    term: f.TermNumber
    yes: bool


class ReplicaState(Struct, frozen=True, array_like=True):
    """One replica of a shard."""

    shard: f.PsNumber
    ps: f.PsNumber
    """The number of its ps."""
    role: Literal["empty", "learner", "standby", "primary"]
    lineage: f.Token
    term: Term
    position: f.Position
    version: f.Version
    incarnation: f.Token
    """Incarnation of the ps task."""
    host: f.Host = ""
    behind: f.Position = 0
    """Records not yet confirmed by the standby; of a primary."""
    vote_request: VoteRequest | None = None
    fit: f.Fit = 0
    """The current training."""
    transport: f.Word = ""
    """Transport of the records to the standby; of a primary."""


# The headers of the stream from the primary to the other replica.


class ReplicationHello(Struct, frozen=True, tag=10, array_like=True):
    """primary -> standby, first frame: the sender of the records. `ps`: the number of the primary's ps."""

    shard: f.PsNumber
    ps: f.PsNumber
    incarnation: f.Token
    number: f.Count = 0
    """Number of this stream among all that the primary's process has opened to the replica."""


class HeldPush(Struct, frozen=True, array_like=True):
    """A push that the rule has accepted and not yet applied."""

    worker: f.WorkerNumber
    sequence: f.Sequence
    examples: f.Examples
    version: f.Version


SourceCopy = Annotated[bytes, Meta(max_length=256 * MIB)]
"""The ledger of a shared data source."""
KeptState = tuple[f.Sequence, f.WorkerStateData]
"""A worker's state, and after how many pushes."""


class InstallSnapshot(Struct, frozen=True, tag=11, array_like=True):
    """primary -> replica: the whole state after record `position`.

    The body: the params' blocks, the optimizer state's leaves, and the blocks of each held push.
    """

    lineage: f.Token
    term: Term
    position: f.Position
    version: f.Version
    rule: Raw
    held: Annotated[tuple[HeldPush, ...], Meta(max_length=LIMITS.blocks)]
    began: Began
    sources: Annotated[dict[f.Name, SourceCopy], Meta(max_length=LIMITS.sources)]
    worker_state: Annotated[dict[f.WorkerNumber, KeptState], Meta(max_length=LIMITS.tasks)]
    job: f.Token


class Records(Struct, frozen=True, tag=12, array_like=True):
    """primary -> replica: records from number `first` on; the body has the blocks of their pushes, in order.

    Serves as a heartbeat if it has no records.
    """

    lineage: f.Token
    term: f.TermNumber
    first: f.Position
    version: f.Version
    """Version of the shard after them."""
    records: Annotated[tuple[LogRecord, ...], Meta(max_length=LIMITS.records)]
    asks: bool = True
    """Whether to answer with `Taken`; otherwise only if nothing is taken."""


class Taken(Struct, frozen=True, tag=13, array_like=True):
    """replica -> primary: it has everything up to record `position`; or `fenced`: why it takes nothing."""

    position: f.Position
    fenced: f.Text = ""
    term: f.TermNumber = 0
    """The term in which it holds the shard itself; 0 if it does not."""


Upward = ReplicationHello | InstallSnapshot | Records
"""Messages from a primary."""
