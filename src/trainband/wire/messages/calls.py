"""The records of trainband's protocol.

Control records belong to `Connection.call` (one action, one answer). Stream records are the headers of the
frames of a training stream; they are positional and tagged, because each of their bytes slows down a step.

An action on a shard carries its number, as `begin/1`; without a number it is on the ps's own.

Decoded values are within the bounds of `wire/messages/fields.py`. A record in which a worker describes itself names its
process (`incarnation`): a ps refuses it if another process has replaced the worker.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.checkpoint.manifest import Part, Piece
from trainband.data.leases import LeaseRequest
from trainband.errors import RefusalCode
from trainband.runtime.step_recording import PushMoments
from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f
from trainband.wire.messages.description import Description as Description
from trainband.wire.messages.fields import UNLIMITED as UNLIMITED
from trainband.wire.messages.recording import RecordingOrder
from trainband.wire.messages.replication import ReplicaState
from trainband.wire.messages.workload import Parts, Workload

# First the actions of `Connection.call`, by name: request -> answer. Then the headers of a training stream.


class Join(Struct, frozen=True):
    """`join` -> `Joined`. Idempotent: a worker repeats it until the job is ready."""

    task: f.TaskName
    incarnation: f.Incarnation
    """Random, one for each process: distinguishes a repeated call from a second claimant."""
    host: f.Host
    pid: f.ProcessId
    description: Description
    job: f.Token = ""
    """The job this task has been in, so that a task of an older job does not join this one."""
    paused: bool = False
    """Whether this worker's data is used up, for a new ps that has not received its `Pause`."""
    version: f.Word = ""
    """The trainband version, from `version.build`. A worker that sends none is older than those that do."""
    device: f.Word = ""
    """The worker's device, for the display; empty if unknown."""


class Joined(Struct, frozen=True):
    """The answer to `join`."""

    worker: f.WorkerNumber
    lease_s: float
    defined: bool
    initialised: bool
    last_sequence: f.Sequence = 0
    """The last push received from this worker, in this incarnation or an earlier one: resume after it."""
    trainings: f.Trainings = ()
    """As in `Begin`."""
    lineage: f.Token = ""
    """Random, made with the first values of the shard: distinguishes a broken stream, or a standby that has taken
    over, from a lost shard."""
    fit: f.Fit = 0
    """The current training."""
    protected: bool = False
    """Whether the shard has a standby."""
    term: f.TermNumber = 0
    job: f.Token = ""
    empty: bool = True
    """Whether this ps has no values of the shard; a standby has."""
    version: f.Word = ""
    """The trainband version of this ps."""


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
    """For each leaf of the optimizer state, the rows of tensors that it consists of, in order."""
    job: f.Token = ""
    """Random id of the job, made by the chief."""
    alone: bool = False
    """Whether this ps returns to a running job: it does not wait for workers that have not joined."""
    jax: f.Word = ""
    """The version of JAX that exported the program."""


class Invite(Struct, frozen=True):
    """`invite` -> `ReplicaState`, from the primary of a shard to its other replica: prepare to take the records."""

    replica: ReplicaState
    define: Define
    trainband: f.Word
    """The version of trainband that the primary runs."""
    compiler: f.Word
    """The compiler of update programs there."""


class Begin(Struct, frozen=True):
    """`begin` -> `JobState`, chief only: make updates until the version is `last_version`.

    Idempotent by `fit`, which counts from 1.
    """

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    fit: Annotated[int, Meta(ge=1, le=LIMITS.fit)]
    last_version: f.Version
    trainings: f.Trainings = ()
    """The global step at which each training run of the chief's script began, for a later chief."""


class Finish(Struct, frozen=True):
    """`finish` -> `JobState`, chief only: no more updates; the training ends where it is."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class Steer(Struct, frozen=True):
    """`steer` -> `JobState`, chief only: another value for a number of the optimizer's state."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    leaf: f.StateLeaf
    """The leaf of the optimizer state."""
    value: float


class Save(Struct, frozen=True):
    """`save` -> `SaveState`, chief only: write your part of a checkpoint at version `at`; at once if already there.

    Replaces a save that has not begun.
    """

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    directory: f.Path
    """An absolute path that this ps shares with the chief."""
    at: f.Version


class SaveQuestion(Struct, frozen=True):
    """`save_state` -> `SaveState`, chief only."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    worker_state: bool
    """Whether the answer should include the workers' worker state."""


ARMED = "armed"
WRITING = "writing"
WRITTEN = "written"
FAILED = "failed"


FORGOTTEN = "forgotten"
"""The phase at a ps that has died since the order, or never received it."""


class SaveState(Struct, frozen=True):
    """Progress of one ps with its part of a checkpoint."""

    phase: f.Word
    """ARMED, WRITING, WRITTEN or FAILED."""
    version: f.Version = 0
    failure: f.Text = ""
    part: Part | None = None
    awaited: f.PeerNames = ()
    """The workers whose worker state for this checkpoint has not arrived."""
    worker_state: f.WorkerStates = {}
    """State that each worker, by number, needs to resume from here."""
    sources: f.SourceRecords = {}
    """The shared data sources at this version."""


class Committed(Struct, frozen=True):
    """`committed` -> `JobState`, chief only: a checkpoint was committed. ps:0 shows it."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    global_step: f.Version
    nbytes: f.Count
    seconds: float
    """Seconds since its step was reached."""


class LeftWorkerState(Struct, frozen=True):
    """`worker_state` -> `JobState`: this worker's state after `sequence` pushes, kept by ps:0."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    sequence: f.Sequence
    data: f.WorkerStateData


class WorkerStateQuestion(Struct, frozen=True):
    """`my_worker_state` -> `WorkerStateAnswer`: the state from an earlier process of this worker or a checkpoint."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class WorkerStateAnswer(Struct, frozen=True):
    """`data` is empty if there is no state."""

    data: f.WorkerStateData


class Restore(Struct, frozen=True):
    """`restore` -> `RestoreState`, chief only: read this shard's part of a checkpoint, to be adopted later."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    directory: f.Path
    optimizer: bool = True
    """Whether to read the optimizer state; if not, it starts from its initial values."""


class RestoreQuestion(Struct, frozen=True):
    """`restore_state` -> `RestoreState`, chief only."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token


class RestoreState(Struct, frozen=True):
    """Progress of a restore."""

    done: bool
    failure: f.Text = ""
    damaged: bool = False
    """Whether it failed because of a damaged file."""
    forgotten: bool = False
    """Whether the ps does not know it: it has died since the order, or never received it."""


class Adopt(Struct, frozen=True):
    """`adopt` -> `Joined`, chief only: take the values that were read, as this version."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    token: f.Token
    version: f.Version
    worker_state: f.WorkerStates = {}
    sources: f.SourceRecords = {}
    alone: bool = False
    """As in `Define`."""


class Memory(Struct, frozen=True):
    """Memory used by a worker, in bytes; 0 if its platform does not report it."""

    process: f.Count = 0
    """That of the process and those that it started, see `runtime.memory.ProcessMemory`."""
    device: f.Count = 0
    """Device memory in use, on all its devices together."""
    device_limit: f.Count = 0
    """Limit on its devices for this process."""
    parts: f.MemoryParts = ()
    """Parts of `process`, by `runtime.memory.PARTS`; empty if unknown."""


NO_MEMORY = Memory()


class Heartbeat(Struct, frozen=True):
    """`heartbeat` -> `JobState`: this worker is alive."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    blocked_by: f.PeerNames = ()
    """The workers whose pushes some ps awaits before it answers this one."""
    paused: bool = False
    """Whether this worker's data is used up, for a ps without a shard, which receives neither `Pause` nor pushes."""
    first_batch: f.Token = ""
    """Digest of the first batch that this worker has trained on; empty before."""
    spent: f.StepSeconds = ()
    """Seconds of its steps spent on each of `step_times.PARTS`; empty if not reported."""
    memory: Memory = NO_MEMORY


class Pause(Struct, frozen=True):
    """`pause` -> `JobState`: this worker stays, but its data is used up: do not wait for its next push."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation


class Lease(Struct, frozen=True):
    """`lease` -> `LeaseAnswer`: a worker asks ps:0 for the next piece of a shared data source."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    request: LeaseRequest


class Leave(Struct, frozen=True):
    """`leave` -> `JobState`: this worker leaves; `failure` is the reason, empty if all is well."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    failure: f.Text
    first_batch: f.Token = ""
    """As in `Heartbeat`: a training run may be shorter than the heartbeat interval."""
    lost: f.Text = ""
    """Why the values of a shard cannot be recovered, so that the job is over; empty if they can."""


class JobState(Struct, frozen=True):
    """Progress of one shard."""

    version: f.Version
    last_version: f.Version
    fit: f.Fit
    initialised: bool
    live: f.PeerNames
    """The workers in the job."""
    waiting_for: f.PeerNames = ()
    """The workers whose pushes others are waiting for."""
    at_work: f.PeerNames = ()
    """The live workers that have not reported that their data is used up."""
    chief: f.Word = ""
    """The worker with the chief's duties now."""
    trainings: f.Trainings = ()
    """As in `Begin`."""
    replicas: Annotated[tuple[ReplicaState, ...], Meta(max_length=LIMITS.tasks)] = ()
    """The replicas on this ps."""
    complete: bool = False
    """Whether each of them has all requested updates."""
    lost: f.Text = ""
    """As in `Leave`."""
    clock_s: f.Seconds = 0.0
    """The time on the clock of this ps."""
    recording: RecordingOrder | None = None
    """The pending request for recorded steps."""


class Vacancy(Struct, frozen=True):
    """`vacancy` (asked with an empty body) -> `Vacancy`: a place for a worker that is in no spec."""

    cluster: Annotated[
        dict[f.Word, Annotated[dict[f.WorkerIndex, f.Word], Meta(max_length=LIMITS.tasks)]], Meta(max_length=16)
    ]
    """The addresses of every job, by index."""
    worker: f.WorkerIndex
    """The index for one more worker; each request gets the next one."""


class Shutdown(Struct, frozen=True):
    """`shutdown` -> `JobState`: end the job now."""

    reason: f.Text


class Open(Struct, frozen=True, tag=1, array_like=True):
    """worker -> ps, first frame: who opens this stream."""

    worker: f.WorkerNumber
    incarnation: f.Incarnation
    shard: f.PsOrNobody = -1
    """The shard to serve; -1: the ps's own."""
    bootstrapping: bool = False
    """Whether it only brings first values: its end does not affect the worker."""


class Initialise(Struct, frozen=True, tag=2, array_like=True):
    """chief -> ps, with the shard's blocks: the first values, ignored if there are values.

    Answered by `Params` without values.
    """


class Pull(Struct, frozen=True, tag=3, array_like=True):
    """worker -> ps: send me the params; answered by `Params`.

    It may have the ids of rows, an array for each table: then their rows come after the blocks of the answer.
    """


class Push(Struct, frozen=True, tag=4, array_like=True):
    """worker -> ps, with the shard's gradient: its blocks, and for each table ids and gradients; answered by `Params`.

    As with `Pull`, ids of rows may follow.
    """

    sequence: f.Sequence
    version: f.Version
    """Version of the params that the gradient was computed from."""
    examples: f.Examples
    loss: float
    finite: bool
    """Whether the worker found the whole gradient finite; this shard only sees a part."""
    fit: f.Fit = 0
    """The training it is part of: pushes after its end are dropped. 0 without such a check."""
    workload: Workload | None = None
    """The cost of computing it, if the rule divides the examples of an update."""
    recorded: bool = False
    """Whether the answer should include the times at which the ps handled it."""


class Assign(Struct, frozen=True, tag=7, array_like=True):
    """worker -> ps, with blocks in the layout of the params: values for some slices; answered by `Params`.

    It takes effect at once under any update rule, and does not count as an update.
    """

    replaced: f.SliceNumbers
    """The slices to replace."""
    added: f.SliceNumbers
    """The slices to add to."""


APPLIED = 0
DROPPED = 1
NON_FINITE = 2


class Params(Struct, frozen=True, tag=5, array_like=True):
    """ps -> worker, with the shard's param blocks."""

    version: f.Version
    outcome: Annotated[int, Meta(ge=0, le=2)]
    """Result of the push that this answers: APPLIED, DROPPED or NON_FINITE."""
    staleness: f.Count
    done: bool
    """Whether the shard has made all requested updates."""
    detail: f.Text
    worker_state: f.Sequence = 0
    """Number of this worker's pushes in a checkpoint that needs its worker state; 0 if there is none."""
    share: Parts = 0
    """Number of parts for this worker's next step; 0 lets the worker choose."""
    held_s: f.Seconds = 0.0
    """Seconds the ps held the push that this answers, waiting for other pushes and the update."""
    moments: PushMoments | None = None
    """Times of the push that this answers, if it is recorded."""
    is_narrow: bool = False
    """Whether the blocks are in the description's `pull_dtype`."""


class Failure(Struct, frozen=True, tag=6, array_like=True):
    """ps -> worker: the request cannot be served; the stream ends."""

    message: f.Text
    code: RefusalCode = RefusalCode.OTHER


Upward = Open | Initialise | Pull | Push | Assign
"""Messages from a worker."""
Downward = Params | Failure
"""Messages from a ps."""
