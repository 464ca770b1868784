"""What tasks say to each other: every record of trainband's protocol.

Control records answer `Connection.call` (one action, one answer). Stream records are the headers of the
frames of a training stream; they are positional and tagged, because a step pays for each byte of them.

An action on a shard is named with it, as `begin/1`; without a number it is on the ps's own.

What decodes is within the bounds of `wire/fields.py`. A record in which a worker speaks of itself says which process
that is (`incarnation`): a ps refuses it where another one has the worker's place.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.checkpoint.manifest import Part, Piece
from trainband.data.leases import LeaseRequest
from trainband.errors import RefusalCode
from trainband.runtime.step_recording import PushMoments
from trainband.wire import fields as f
from trainband.wire.fields import UNLIMITED as UNLIMITED
from trainband.wire.limits import LIMITS
from trainband.wire.recording import RecordingOrder
from trainband.wire.replication import ReplicaState
from trainband.wire.workload import Parts, Workload

# --- the actions of `Connection.call`, by name: what is sent -> what is answered


class VariableRecord(Struct, frozen=True):
    """A variable of the model."""

    name: f.Name
    shape: f.Shape
    dtype: f.Word
    trained: bool = True


class SliceRecord(Struct, frozen=True):
    """Rows [start, stop) of the variable with this index, on ps number `ps`."""

    variable: Annotated[int, Meta(ge=0, lt=LIMITS.variables)]
    start: f.Dimension
    stop: f.Dimension
    ps: f.PsNumber


class Description(Struct, frozen=True):
    """Everything in which all tasks of a job must agree, in plain values that can be compared."""

    variables: Annotated[tuple[VariableRecord, ...], Meta(max_length=LIMITS.variables)]
    slices: Annotated[tuple[SliceRecord, ...], Meta(max_length=LIMITS.slices)]
    ps_count: Annotated[int, Meta(ge=1, le=LIMITS.tasks)]
    rule: f.RuleSettings
    update_text: f.UpdateText
    """The traced update program (a jaxpr) as text: two optimizers that differ, differ here."""
    jax_version: f.Word
    wire_dtype: f.Word = ""
    """What gradients are sent as; empty: as they are."""
    state_merge: f.Word = "mean"
    """What becomes of the model state that several workers push for one update: `mean` or `chief`."""
    standbys: Annotated[int, Meta(ge=0, le=1)] = 0
    """How many standbys each shard has: none or one."""
    stall_s: float = 0.0
    """Seconds without a push after which a worker that is waited for is counted no more; 0 for never."""


class Join(Struct, frozen=True):
    """`join` -> `Joined`. Idempotent: a worker repeats it until the job is ready."""

    task: f.TaskName
    incarnation: f.Incarnation
    """Random, one for each life of a process: tells a repeated call from a second claimant."""
    host: f.Host
    pid: f.ProcessId
    description: Description
    job: f.Token = ""
    """Of which job this task has been, so that one of an older job does not stray into this one."""
    paused: bool = False
    """See `Pause`: a ps that is new knows it at once."""
    version: f.Word = ""
    """Of trainband. One that says none is older than those that do."""
    device: f.Word = ""
    """What this worker computes on, for the display; empty where it is not known."""


class Joined(Struct, frozen=True):
    """The answer to `join`."""

    worker: f.WorkerNumber
    lease_s: float
    defined: bool
    initialised: bool
    last_sequence: f.Sequence = 0
    """Of the pushes that were seen from this worker, in this incarnation or an earlier one: resume from there."""
    trainings: f.Trainings = ()
    """See `Begin`."""
    lineage: f.Token = ""
    """Random, made with the first values of the shard: a worker tells by it a stream that broke off, or a standby that
    has taken over, from a shard that was lost."""
    fit: f.Fit = 0
    """The training under way."""
    protected: bool = False
    """Whether the shard has a standby."""
    term: f.TermNumber = 0
    job: f.Token = ""
    empty: bool = True
    """Whether this ps has nothing of the shard; a standby has."""


class Define(Struct, frozen=True):
    """`define` -> `Joined`, chief only: the model, and this shard's update program as serialised StableHLO."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    ps: f.PsNumber
    description: Description
    initialise: f.Program
    update: f.Program
    state: Annotated[
        tuple[Annotated[tuple[Piece, ...], Meta(max_length=LIMITS.pieces)], ...], Meta(max_length=LIMITS.state_leaves)
    ] = ()
    """Of each leaf of the optimizer state, the rows of which tensors it is made of, one after the other."""
    job: f.Token = ""
    """Random, made by the chief: which job this is."""
    alone: bool = False
    """Whether this ps comes back into a job that is under way: nobody is waited for who has not come."""
    jax: f.Word = ""
    """The version of JAX that exported the program."""


class Invite(Struct, frozen=True):
    """`invite` -> `SeatState`, from the primary of a shard to its other replica: prepare to take the records."""

    replica: ReplicaState
    define: Define
    trainband: f.Word
    """The version of trainband that the primary runs."""
    compiler: f.Word
    """What compiles update programs there."""


class Begin(Struct, frozen=True):
    """`begin` -> `JobState`, chief only: make updates until the version is `last_version`.

    Idempotent by `fit`, which counts from 1.
    """

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    fit: Annotated[int, Meta(ge=1, le=LIMITS.fit)]
    last_version: f.Version
    trainings: f.Trainings = ()
    """The global step at which each training of the chief's script began, for a chief that comes after it."""


class Finish(Struct, frozen=True):
    """`finish` -> `JobState`, chief only: no more updates; the training ends where it is."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class Steer(Struct, frozen=True):
    """`steer` -> `JobState`, chief only: another value for a number of the optimizer's state."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    leaf: f.StateLeaf
    """Which leaf of the state."""
    value: float


class Save(Struct, frozen=True):
    """`save` -> `SaveState`, chief only: write your part of a checkpoint when your version is `at`; at once if it is.

    Takes the place of one that has not begun.
    """

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    directory: f.Path
    """An absolute path that this ps shares with the chief."""
    at: f.Version


class SaveQuestion(Struct, frozen=True):
    """`save_state` -> `SaveState`."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
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

    phase: f.Word
    """ARMED, WRITING, WRITTEN or FAILED."""
    version: f.Version = 0
    failure: f.Text = ""
    part: Part | None = None
    awaited: f.PeerNames = ()
    """The workers whose worker state for this checkpoint has not come."""
    worker_state: f.WorkerStates = {}
    """What each worker, by its number, must find again when it resumes from here."""
    sources: f.SourceRecords = {}
    """The shared data sources, as they were at this version."""


class Landed(Struct, frozen=True):
    """`landed` -> `JobState`, chief only: a checkpoint was committed. ps:0 shows it."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    global_step: f.Version
    nbytes: f.Count
    seconds: float
    """From when its step had come."""


class LeftWorkerState(Struct, frozen=True):
    """`worker_state` -> `JobState`: what this worker must find again, as of `sequence` pushes. ps:0 keeps it."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    sequence: f.Sequence
    data: f.WorkerStateData


class WorkerStateQuestion(Struct, frozen=True):
    """`my_worker_state` -> `WorkerStateAnswer`: what an earlier process of this worker left, or a checkpoint holds."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class WorkerStateAnswer(Struct, frozen=True):
    """`data` is empty where there is none."""

    data: f.WorkerStateData


class Restore(Struct, frozen=True):
    """`restore` -> `RestoreState`, chief only: read this shard's part of a checkpoint, to be adopted later."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    directory: f.Path
    optimizer: bool = True
    """Whether the optimizer state is read too, or begins anew."""


class RestoreQuestion(Struct, frozen=True):
    """`restore_state` -> `RestoreState`."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token


class RestoreState(Struct, frozen=True):
    """How far the reading is."""

    done: bool
    failure: f.Text = ""
    damaged: bool = False
    """Whether it failed because of a damaged file."""
    forgotten: bool = False
    """Whether the ps knows nothing of it: it has died since the order, or was never given it."""


class Adopt(Struct, frozen=True):
    """`adopt` -> `Joined`, chief only: take the values that were read, as this version."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    version: f.Version
    worker_state: f.WorkerStates = {}
    sources: f.SourceRecords = {}
    alone: bool = False
    """See `Define`."""


class Memory(Struct, frozen=True):
    """What a worker uses, in bytes; 0 where its platform doesn't say."""

    process: f.Count = 0
    """Resident memory of the process."""
    device: f.Count = 0
    """In use on the devices that it computes on, all together."""
    device_limit: f.Count = 0
    """How much they have for this process."""


NO_MEMORY = Memory()


class Heartbeat(Struct, frozen=True):
    """`heartbeat` -> `JobState`: this worker is alive."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    blocked_by: f.PeerNames = ()
    """The workers whose push some ps waits for before it answers this one."""
    paused: bool = False
    """See `Pause`: a ps that holds no shard is asked for no pause, and sees no push."""
    first_batch: f.Token = ""
    """A digest of the first batch that this worker has trained on; empty before."""
    spent: f.StepSeconds = ()
    """Seconds that its steps have spent on each of `step_times.PARTS`; empty where it says nothing of that."""
    memory: Memory = NO_MEMORY


class Pause(Struct, frozen=True):
    """`pause` -> `JobState`: this worker stays, but its data is used up: nobody shall wait for its next push."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class Lease(Struct, frozen=True):
    """`lease` -> `LeaseAnswer`: a worker asks ps:0 for the next piece of a shared data source."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    request: LeaseRequest


class Leave(Struct, frozen=True):
    """`leave` -> `JobState`: this worker goes; `failure` says why, empty where all is well."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    failure: f.Text
    first_batch: f.Token = ""
    """As in `Heartbeat`: a training may be shorter than the time between two."""
    lost: f.Text = ""
    """Why the values of a shard cannot be given back by anybody, so that the job is over; empty where they can."""


class JobState(Struct, frozen=True):
    """How far one shard is."""

    version: f.Version
    last_version: f.Version
    fit: f.Fit
    initialised: bool
    live: f.PeerNames
    """The workers that are in the job now."""
    waiting_for: f.PeerNames = ()
    """The workers without whose push somebody does not go on."""
    at_work: f.PeerNames = ()
    """Those of the live that have not said that their data is used up."""
    chief: f.Word = ""
    """The worker that has the chief's duties now."""
    trainings: f.Trainings = ()
    """See `Begin`."""
    replicas: Annotated[tuple[ReplicaState, ...], Meta(max_length=LIMITS.tasks)] = ()
    """Of this ps."""
    complete: bool = False
    """Whether each of them has all the updates that were asked for."""
    lost: f.Text = ""
    """See `Leave`."""
    clock_s: f.Seconds = 0.0
    """What the clock of this ps shows."""
    recording: RecordingOrder | None = None
    """Of steps that somebody wants to see, while it is awaited."""


class Vacancy(Struct, frozen=True):
    """`vacancy` (asked with an empty body) -> `Vacancy`: a place for a worker that is in no spec."""

    cluster: Annotated[
        dict[f.Word, Annotated[dict[f.WorkerIndex, f.Word], Meta(max_length=LIMITS.tasks)]], Meta(max_length=16)
    ]
    """The addresses of every job, by index."""
    worker: f.WorkerIndex
    """The index for one more worker; the next who asks gets the next."""


class Shutdown(Struct, frozen=True):
    """`shutdown` -> `JobState`: end the job now."""

    reason: f.Text


# --- the headers of a training stream


class Open(Struct, frozen=True, tag=1, array_like=True):
    """worker -> ps, first frame: whose stream this is."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    shard: f.PsOrNobody = -1
    """The one that is served; -1: the ps's own."""
    bootstrapping: bool = False
    """Whether it brings first values and no more: its end says nothing of the worker."""


class Initialise(Struct, frozen=True, tag=2, array_like=True):
    """chief -> ps, with the shard's blocks: the first values, ignored where there are values; answered by `Params`."""


class Pull(Struct, frozen=True, tag=3, array_like=True):
    """worker -> ps: send me the params; answered by `Params`."""


class Push(Struct, frozen=True, tag=4, array_like=True):
    """worker -> ps, with the shard's gradient blocks; answered by `Params`."""

    sequence: f.Sequence
    version: f.Version
    """Of the params that the gradient was computed from."""
    examples: f.Examples
    loss: float
    finite: bool
    """The worker's own verdict on the whole gradient, of which this shard sees a part."""
    fit: f.Fit = 0
    """Of which training it is part: what comes after its end is dropped. 0 where nobody counts."""
    workload: Workload | None = None
    """What it took to compute, where the rule divides the examples of an update."""
    recorded: bool = False
    """Whether the answer shall say when the ps did what with it."""


class Assign(Struct, frozen=True, tag=7, array_like=True):
    """worker -> ps, with blocks in the layout of the params: values for some slices; answered by `Params`.

    It takes effect at once, whatever the update rule, and is no update.
    """

    replaced: f.SliceNumbers
    """The slices whose values these are."""
    added: f.SliceNumbers
    """Those to whose values these are added."""


APPLIED = 0
DROPPED = 1
NON_FINITE = 2


class Params(Struct, frozen=True, tag=5, array_like=True):
    """ps -> worker, with the shard's param blocks."""

    version: f.Version
    outcome: Annotated[int, Meta(ge=0, le=2)]
    """Of the push that this answers: APPLIED, DROPPED or NON_FINITE."""
    staleness: f.Count
    done: bool
    """Whether the shard has made all the updates that were asked for."""
    detail: f.Text
    worker_state: f.Sequence = 0
    """How many of this worker's pushes are in a checkpoint that waits for its worker state; 0 where none waits."""
    share: Parts = 0
    """Of how many parts this worker's next step shall be; 0 where that is left to it."""
    held_s: f.Seconds = 0.0
    """For how long the ps has held the push that this answers: for those of others, and for the update."""
    moments: PushMoments | None = None
    """Of the push that this answers, where it is recorded."""


class Failure(Struct, frozen=True, tag=6, array_like=True):
    """ps -> worker: the request cannot be served; the stream ends."""

    message: f.Text
    code: RefusalCode = RefusalCode.OTHER


Upward = Open | Initialise | Pull | Push | Assign
"""What a worker sends."""
Downward = Params | Failure
"""What a ps sends."""
