"""What tasks say to each other: every record of trainband's protocol.

Control records answer `Connection.call` (one action, one answer). Stream records are the headers of the
frames of a training stream; they are positional and tagged, because a step pays for each byte of them.
"""

from __future__ import annotations

from msgspec import Struct

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


class Join(Struct, frozen=True):
    """`join` -> `Joined`. Idempotent: a worker repeats it until the job is ready."""

    task: str
    incarnation: str
    """Random, one for each life of a process: tells a repeated call from a second claimant."""
    host: str
    pid: int
    description: Description


MISMATCH = "another model: "
"""Begins the refusal of a `join` whose model is not the chief's, for the worker to tell it from others."""


class Joined(Struct, frozen=True):
    """The answer to `join`."""

    worker: int
    lease_s: float
    defined: bool
    initialised: bool
    last_sequence: int = 0
    """Of the pushes that were seen from this worker, in this life or an earlier one: go on from there."""


class Define(Struct, frozen=True):
    """`define` -> `Joined`, chief only: the model, and this shard's update program as serialised StableHLO."""

    worker: int
    ps: int
    description: Description
    initialise: bytes
    update: bytes


class Begin(Struct, frozen=True):
    """`begin` -> `JobState`, chief only: make `steps` more updates. Idempotent by `fit`, which counts from 1."""

    worker: int
    fit: int
    steps: int


class Heartbeat(Struct, frozen=True):
    """`heartbeat` -> `JobState`: this worker is alive."""

    worker: int


class Pause(Struct, frozen=True):
    """`pause` -> `JobState`: this worker stays, but its data is used up: nobody shall wait for its next push."""

    worker: int


class Leave(Struct, frozen=True):
    """`leave` -> `JobState`: this worker goes; `failure` says why, empty where all is well."""

    worker: int
    failure: str


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


class Shutdown(Struct, frozen=True):
    """`shutdown` -> `JobState`: end the job now."""

    reason: str


# --- the headers of a training stream


class Open(Struct, frozen=True, tag=1, array_like=True):
    """worker -> ps, first frame: whose stream this is."""

    worker: int
    incarnation: str


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


class Failure(Struct, frozen=True, tag=6, array_like=True):
    """ps -> worker: the request cannot be served; the stream ends."""

    message: str


Upward = Open | Initialise | Pull | Push
"""What a worker sends."""
Downward = Params | Failure
"""What a ps sends."""
