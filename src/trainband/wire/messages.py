"""What tasks say to each other: every record of trainband's protocol.

Control records answer `Connection.call` (one action, one answer). Stream records are the headers of the
frames of a training stream; they are positional and tagged, because a step pays for each byte of them.

An action on a shard is named with it, as `begin/1`; without a number it is on the ps's own.
"""

from __future__ import annotations

from msgspec import Struct

from trainband.checkpoint.manifest import Part, Piece
from trainband.data.leases import LeaseRequest
from trainband.errors import RefusalCode
from trainband.wire.replication import ReplicaState

# --- the actions of `Connection.call`, by name: what is sent -> what is answered


class VariableRecord(Struct, frozen=True):
    """A variable of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool = True


class SliceRecord(Struct, frozen=True):
    """Rows [start, stop) of the variable with this index, on ps number `ps`."""

    variable: int
    start: int
    stop: int
    ps: int


class Description(Struct, frozen=True):
    """Everything in which all tasks of a job must agree, in plain values that can be compared."""

    variables: tuple[VariableRecord, ...]
    slices: tuple[SliceRecord, ...]
    ps_count: int
    rule: dict[str, str | int | float | bool | None]
    update_text: str
    """The traced update program (a jaxpr) as text: two optimizers that differ, differ here."""
    jax_version: str
    wire_dtype: str = ""
    """What gradients are sent as; empty: as they are."""
    state_merge: str = "mean"
    """What becomes of the model state that several workers push for one update: `mean` or `chief`."""
    standbys: int = 0
    """How many standbys each shard has: none or one."""
    stall_s: float = 0.0
    """Seconds without a push after which a worker that is waited for is counted no more; 0 for never."""


class Join(Struct, frozen=True):
    """`join` -> `Joined`. Idempotent: a worker repeats it until the job is ready."""

    task: str
    incarnation: str
    """Random, one for each life of a process: tells a repeated call from a second claimant."""
    host: str
    pid: int
    description: Description
    job: str = ""
    """Of which job this task has been, so that one of an older job does not stray into this one."""
    paused: bool = False
    """See `Pause`: a ps that is new knows it at once."""
    version: str = ""
    """Of trainband. One that says none is older than those that do."""


class Joined(Struct, frozen=True):
    """The answer to `join`."""

    worker: int
    lease_s: float
    defined: bool
    initialised: bool
    last_sequence: int = 0
    """Of the pushes that were seen from this worker, in this incarnation or an earlier one: resume from there."""
    trainings: tuple[int, ...] = ()
    """See `Begin`."""
    lineage: str = ""
    """Random, made with the first values of the shard: a worker tells by it a stream that broke off, or a standby that
    has taken over, from a shard that was lost."""
    fit: int = 0
    """The training under way."""
    protected: bool = False
    """Whether the shard has a standby."""
    term: int = 0
    job: str = ""
    empty: bool = True
    """Whether this ps has nothing of the shard; a standby has."""


UNLIMITED = 1 << 62
"""A last version from here on means that no number of updates was asked for."""


class Define(Struct, frozen=True):
    """`define` -> `Joined`, chief only: the model, and this shard's update program as serialised StableHLO."""

    worker: int
    ps: int
    description: Description
    initialise: bytes
    update: bytes
    state: tuple[tuple[Piece, ...], ...] = ()
    """Of each leaf of the optimizer state, the rows of which tensors it is made of, one after the other."""
    job: str = ""
    """Random, made by the chief: which job this is."""
    alone: bool = False
    """Whether this ps comes back into a job that is under way: nobody is waited for who has not come."""
    jax: str = ""
    """The version of JAX that exported the program."""


class Invite(Struct, frozen=True):
    """`invite` -> `SeatState`, from the primary of a shard to its other replica: prepare to take the records."""

    replica: ReplicaState
    define: Define
    trainband: str
    """The version of trainband that the primary runs."""
    compiler: str
    """What compiles update programs there."""


class Begin(Struct, frozen=True):
    """`begin` -> `JobState`, chief only: make updates until the version is `last_version`.

    Idempotent by `fit`, which counts from 1.
    """

    worker: int
    fit: int
    last_version: int
    trainings: tuple[int, ...] = ()
    """The global step at which each training of the chief's script began, for a chief that comes after it."""


class Finish(Struct, frozen=True):
    """`finish` -> `JobState`, chief only: no more updates; the training ends where it is."""

    worker: int


class Steer(Struct, frozen=True):
    """`steer` -> `JobState`, chief only: another value for a number of the optimizer's state."""

    worker: int
    leaf: int
    """Which leaf of the state."""
    value: float


class Save(Struct, frozen=True):
    """`save` -> `SaveState`, chief only: write your part of a checkpoint when your version is `at`; at once if it is.

    Takes the place of one that has not begun.
    """

    worker: int
    token: str
    directory: str
    """An absolute path that this ps shares with the chief."""
    at: int


class SaveQuestion(Struct, frozen=True):
    """`save_state` -> `SaveState`."""

    worker: int
    token: str
    worker_state: bool
    """Whether the answer shall hold the workers' worker state."""


ARMED = "armed"
WRITING = "writing"
WRITTEN = "written"
FAILED = "failed"


FORGOTTEN = "forgotten"
"""The phase at a ps that has died since the order, or was never given it."""


class SaveState(Struct, frozen=True):
    """How far one ps is with its part of a checkpoint."""

    phase: str
    """ARMED, WRITING, WRITTEN or FAILED."""
    version: int = 0
    failure: str = ""
    part: Part | None = None
    awaited: tuple[str, ...] = ()
    """The workers whose worker state for this checkpoint has not come."""
    worker_state: dict[int, bytes] = {}
    """What each worker, by its number, must find again when it resumes from here."""
    sources: dict[str, str] = {}
    """The shared data sources, as they were at this version."""


class Landed(Struct, frozen=True):
    """`landed` -> `JobState`, chief only: a checkpoint was committed. ps:0 shows it."""

    worker: int
    global_step: int
    nbytes: int
    seconds: float
    """From when its step had come."""


class LeftWorkerState(Struct, frozen=True):
    """`worker_state` -> `JobState`: what this worker must find again, as of `sequence` pushes. ps:0 keeps it."""

    worker: int
    sequence: int
    data: bytes
    incarnation: str = ""


class WorkerStateQuestion(Struct, frozen=True):
    """`my_worker_state` -> `WorkerStateAnswer`: what an earlier process of this worker left, or a checkpoint holds."""

    worker: int


class WorkerStateAnswer(Struct, frozen=True):
    """`data` is empty where there is none."""

    data: bytes


class Restore(Struct, frozen=True):
    """`restore` -> `RestoreState`, chief only: read this shard's part of a checkpoint, to be adopted later."""

    worker: int
    token: str
    directory: str
    optimizer: bool = True
    """Whether the optimizer state is read too, or begins anew."""


class RestoreQuestion(Struct, frozen=True):
    """`restore_state` -> `RestoreState`."""

    worker: int
    token: str


class RestoreState(Struct, frozen=True):
    """How far the reading is."""

    done: bool
    failure: str = ""
    damaged: bool = False
    """Whether it failed because of a damaged file."""
    forgotten: bool = False
    """Whether the ps knows nothing of it: it has died since the order, or was never given it."""


class Adopt(Struct, frozen=True):
    """`adopt` -> `Joined`, chief only: take the values that were read, as this version."""

    worker: int
    token: str
    version: int
    worker_state: dict[int, bytes] = {}
    sources: dict[str, str] = {}
    alone: bool = False
    """See `Define`."""


class Heartbeat(Struct, frozen=True):
    """`heartbeat` -> `JobState`: this worker is alive."""

    worker: int
    incarnation: str = ""
    """The sender's incarnation, here and below: a process that was replaced must not speak for its successor."""
    blocked_by: tuple[str, ...] = ()
    """The workers whose push some ps waits for before it answers this one."""
    paused: bool = False
    """See `Pause`: a ps that holds no shard is asked for no pause, and sees no push."""
    first_batch: str = ""
    """A digest of the first batch that this worker has trained on; empty before."""


class Pause(Struct, frozen=True):
    """`pause` -> `JobState`: this worker stays, but its data is used up: nobody shall wait for its next push."""

    worker: int
    incarnation: str = ""


class Lease(Struct, frozen=True):
    """`lease` -> `LeaseAnswer`: a worker asks ps:0 for the next piece of a shared data source."""

    worker: int
    request: LeaseRequest
    incarnation: str = ""


class Leave(Struct, frozen=True):
    """`leave` -> `JobState`: this worker goes; `failure` says why, empty where all is well."""

    worker: int
    failure: str
    incarnation: str = ""
    first_batch: str = ""
    """As in `Heartbeat`: a training may be shorter than the time between two."""
    lost: str = ""
    """Why the values of a shard cannot be given back by anybody, so that the job is over; empty where they can."""


class JobState(Struct, frozen=True):
    """How far one shard is."""

    version: int
    last_version: int
    fit: int
    initialised: bool
    live: tuple[str, ...]
    """The workers that are in the job now."""
    waiting_for: tuple[str, ...] = ()
    """The workers without whose push somebody does not go on."""
    at_work: tuple[str, ...] = ()
    """Those of the live that have not said that their data is used up."""
    chief: str = ""
    """The worker that has the chief's duties now."""
    trainings: tuple[int, ...] = ()
    """See `Begin`."""
    replicas: tuple[ReplicaState, ...] = ()
    """Of this ps."""
    complete: bool = False
    """Whether each of them has all the updates that were asked for."""
    lost: str = ""
    """See `Leave`."""


class Vacancy(Struct, frozen=True):
    """`vacancy` (asked with an empty body) -> `Vacancy`: a place for a worker that is in no spec."""

    cluster: dict[str, dict[int, str]]
    """The addresses of every job, by index."""
    worker: int
    """The index for one more worker; the next who asks gets the next."""


class Shutdown(Struct, frozen=True):
    """`shutdown` -> `JobState`: end the job now."""

    reason: str


# --- the headers of a training stream


class Open(Struct, frozen=True, tag=1, array_like=True):
    """worker -> ps, first frame: whose stream this is."""

    worker: int
    incarnation: str
    shard: int = -1
    """The one that is served; -1: the ps's own."""
    bootstrapping: bool = False
    """Whether it brings first values and no more: its end says nothing of the worker."""


class Initialise(Struct, frozen=True, tag=2, array_like=True):
    """chief -> ps, with the shard's blocks: the first values, ignored where there are values; answered by `Params`."""


class Pull(Struct, frozen=True, tag=3, array_like=True):
    """worker -> ps: send me the params; answered by `Params`."""


class Push(Struct, frozen=True, tag=4, array_like=True):
    """worker -> ps, with the shard's gradient blocks; answered by `Params`."""

    sequence: int
    version: int
    """Of the params that the gradient was computed from."""
    examples: int
    loss: float
    finite: bool
    """The worker's own verdict on the whole gradient, of which this shard sees a part."""
    fit: int = 0
    """Of which training it is part: what comes after its end is dropped. 0 where nobody counts."""


APPLIED = 0
DROPPED = 1
NON_FINITE = 2


class Params(Struct, frozen=True, tag=5, array_like=True):
    """ps -> worker, with the shard's param blocks."""

    version: int
    outcome: int
    """Of the push that this answers: APPLIED, DROPPED or NON_FINITE."""
    staleness: int
    done: bool
    """Whether the shard has made all the updates that were asked for."""
    detail: str
    worker_state: int = 0
    """How many of this worker's pushes are in a checkpoint that waits for its worker state; 0 where none waits."""


class Failure(Struct, frozen=True, tag=6, array_like=True):
    """ps -> worker: the request cannot be served; the stream ends."""

    message: str
    code: RefusalCode = RefusalCode.OTHER


Upward = Open | Initialise | Pull | Push
"""What a worker sends."""
Downward = Params | Failure
"""What a ps sends."""
