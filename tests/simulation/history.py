"""The history of a simulated job: plain records, in the order in which things happened."""

from __future__ import annotations

from typing import NamedTuple

from trainband.errors import RefusalCode


class PushKey(NamedTuple):
    """One push of one life of a worker; the value of a simulated shard is a tuple of tuples of these."""

    worker: int
    incarnation: str
    sequence: int


Update = tuple[PushKey, ...]
PieceKey = tuple[int, int]


class Begun(NamedTuple):
    """A shard was told how many updates are wanted."""

    at: float
    shard: int
    last_version: int
    replica: str = ""


class In(NamedTuple):
    """A shard's rule was told that a worker is in the job."""

    at: float
    shard: int
    worker: int
    incarnation: str
    replica: str = ""


class Out(NamedTuple):
    """A shard's rule was told that a worker is not in the job, and why: `left`, `lost` or `paused`."""

    at: float
    shard: int
    worker: int
    why: str
    replica: str = ""


class Heard(NamedTuple):
    """A shard has heard of a worker."""

    at: float
    shard: int
    worker: int
    replica: str = ""


class Arrived(NamedTuple):
    """A push was given to the rule."""

    at: float
    shard: int
    push: PushKey
    version: int
    replica: str = ""


class Applied(NamedTuple):
    """A replica has made an update; `version` is the one after it."""

    at: float
    shard: int
    replica: str
    version: int
    update: Update


class Dropped(NamedTuple):
    """The rule dropped a push."""

    at: float
    shard: int
    push: PushKey
    reason: str
    replica: str = ""


class Released(NamedTuple):
    """The rule let a worker have its answer."""

    at: float
    shard: int
    worker: int
    sequence: int
    replica: str = ""


class Waits(NamedTuple):
    """From now on somebody at this shard waits for these workers."""

    at: float
    shard: int
    workers: frozenset[int]
    replica: str = ""


class Looked(NamedTuple):
    """The ps has looked at the leases, and afterwards waits for these workers."""

    at: float
    shard: int
    workers: frozenset[int]
    replica: str = ""


class Refusal(NamedTuple):
    """A worker has ended because a ps refused it."""

    at: float
    task: str
    text: str
    code: RefusalCode = RefusalCode.OTHER


class Acknowledged(NamedTuple):
    """A worker has the answer to its push."""

    at: float
    shard: int
    push: PushKey
    applied: bool
    version: int


class Restored(NamedTuple):
    """A replica without values was given those that this version had; later updates are lost. It holds the shard."""

    at: float
    shard: int
    version: int
    replica: str = ""
    value: tuple[Update, ...] | None = None
    """Where it need not be what the shard had at this version."""


class Promoted(NamedTuple):
    """Another replica holds the shard from this term and version on; no acknowledged update may be lost."""

    at: float
    shard: int
    epoch: int
    version: int
    replica: str = ""
    lineage: str = ""
    position: int = 0
    """Of the last record that it has."""
    value: tuple[Update, ...] | None = None


class Teaching(NamedTuple):
    """A primary has written down everything as it is after this record, for the other replica."""

    at: float
    shard: int
    replica: str
    lineage: str
    position: int


class Taught(NamedTuple):
    """A replica has taken over everything that this other one had written down."""

    at: float
    shard: int
    replica: str
    by: str
    lineage: str
    position: int


class Secured(NamedTuple):
    """A replica that has its snapshot knows that it is the standby: it may succeed."""

    at: float
    shard: int
    replica: str
    by: str
    position: int


class Answered(NamedTuple):
    """A replica lets a worker know of everything up to a record."""

    at: float
    shard: int
    replica: str
    lineage: str
    position: int
    holders: frozenset[str]
    """The replicas that have it all, and may hold the shard."""


class Died(NamedTuple):
    """A life of a ps has ended."""

    at: float
    replica: str


class Broken(NamedTuple):
    """Something happened in a ps that never should: a thread of it has failed."""

    at: float
    replica: str
    text: str


class Leased(NamedTuple):
    """The ledger gave examples [start, stop) of a piece to a worker; a repeated answer is not noted."""

    at: float
    worker: int
    incarnation: str
    piece: PieceKey
    start: int
    stop: int
    position: int = 0
    """Of the record."""
    replica: str = ""


class Trained(NamedTuple):
    """A worker has trained on examples [start, stop) of a piece."""

    at: float
    worker: int
    incarnation: str
    piece: PieceKey
    start: int
    stop: int


class Reported(NamedTuple):
    """A worker's report that it has trained on all of a piece has come to the ledger, for the first time."""

    at: float
    worker: int
    incarnation: str
    piece: PieceKey
    position: int = 0
    replica: str = ""


class GivenBack(NamedTuple):
    """A worker has given back all that it had and not trained on."""

    at: float
    worker: int
    incarnation: str
    position: int = 0
    replica: str = ""


class Steered(NamedTuple):
    """A replica has set the number of the optimizer's state; `version` is that of the shard then."""

    at: float
    shard: int
    value: float
    version: int
    replica: str = ""


class Kept(NamedTuple):
    """A worker has left its state with ps:0, as it was after so many of its pushes, and was told that it is there."""

    at: float
    task: str
    incarnation: str
    pushes: int
    data: bytes


class Found(NamedTuple):
    """A worker that begins has found what was left for it; empty where nothing was."""

    at: float
    task: str
    incarnation: str
    data: bytes


class Committed(NamedTuple):
    """A checkpoint is there: of which version each shard's part is."""

    at: float
    by: str
    global_step: int
    versions: tuple[int, ...]
    complete: bool


class Final(NamedTuple):
    """What a shard holds when the job has ended."""

    at: float
    shard: int
    version: int
    value: tuple[Update, ...]
    held: tuple[PushKey, ...]
    """Gradients that it still keeps."""
    unanswered: frozenset[int]
    """Workers that wait for an answer of this shard."""
    waits: frozenset[int]
    """Those for whom they wait."""
    replica: str = ""
    numbers: tuple[float, ...] = ()
    """Of the optimizer's state, with which each of its updates was made."""


class Data(NamedTuple):
    """The shared data as it was at the end: every piece with its examples [start, stop), if all was to be visited."""

    at: float
    pieces: dict[PieceKey, tuple[int, int]]


class Told(NamedTuple):
    """Anything else that a reader of the trace should know: faults, births, deaths."""

    at: float
    text: str


class Ended(NamedTuple):
    """The simulation is over: the job has ended, or some workers have not, and these have done their part."""

    at: float
    unfinished: tuple[str, ...]
    done: tuple[str, ...] = ()


Record = (
    Begun
    | In
    | Out
    | Heard
    | Arrived
    | Applied
    | Dropped
    | Released
    | Waits
    | Looked
    | Refusal
    | Acknowledged
    | Restored
    | Promoted
    | Teaching
    | Taught
    | Secured
    | Answered
    | Died
    | Broken
    | Leased
    | Trained
    | Reported
    | GivenBack
    | Steered
    | Kept
    | Found
    | Committed
    | Final
    | Data
    | Told
    | Ended
)


class Terms(NamedTuple):
    """What a history is checked against.

    Attributes:
      rule: its `name`, as in its settings.
      staleness: of Bounded.
      aggregate: of Sync: whether a worker may give several gradients to one update.
      updates: how many were asked for; None where the data decides.
      lease_s: of a worker.
      planned: the workers of the cluster.
      in_step: whether every update is made of a gradient of each worker.
      saves: whether there are checkpoints.
      single: whether a fault comes only when the one before it is over and every shard has its standby again.
    """

    rule: str
    staleness: int
    several: bool
    updates: int | None
    lease_s: float
    planned: frozenset[int]
    single: bool = False
    in_step: bool = False
    saves: bool = False


class Violation(NamedTuple):
    """A promise that was broken."""

    at: float
    promise: str
    """In a word or two, the same for all violations of one kind."""
    text: str

    def __str__(self) -> str:
        return f"{self.promise} at {self.at:.3f} s: {self.text}"
