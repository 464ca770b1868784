"""Messages between a reader, which follows the params of a job, and the job's ps.

A reader is not a worker: it does not join, and rules, leases and barriers ignore it. It requests the layout with a
control call, and opens a stream to each shard. A stream carries the changes since the previous answer.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f
from trainband.wire.messages.calls import Failure
from trainband.wire.messages.description import SliceRecord, VariableRecord

WHOLE = -1
"""The whole block, see `Values.changed`."""

MOST_WAIT_S = 5.0
"""How long a ps waits for the version requested by a `Read`."""


class JobLayout(Struct, frozen=True):
    """`layout` (asked with an empty body) -> `JobLayout`: the ps of the job, and the location of each slice.

    Has no variables if no model is defined yet.
    """

    task: f.PeerName
    """The task that answers."""
    addresses: Annotated[tuple[f.Word, ...], Meta(max_length=LIMITS.tasks)]
    """Address of each ps in the cluster spec."""
    standbys: Annotated[int, Meta(ge=0, le=1)] = 0
    variables: Annotated[tuple[VariableRecord, ...], Meta(max_length=LIMITS.variables)] = ()
    slices: Annotated[tuple[SliceRecord, ...], Meta(max_length=LIMITS.slices)] = ()
    job: f.Token = ""
    """Random id of the job, made by the chief."""


class Follow(Struct, frozen=True, tag=20, array_like=True):
    """reader -> ps, first frame: the shard to read."""

    shard: f.PsNumber


class Look(Struct, frozen=True, tag=21, array_like=True):
    """reader -> ps: which version is current? Answered by `Values` without any."""


class Read(Struct, frozen=True, tag=22, array_like=True):
    """reader -> ps: send the changes; answered by `Values`."""

    at: f.Version = 0
    """The version to wait for; the current one is sent if it does not come in time."""
    wait_s: float = 0.0
    """How long to wait for it."""


class Values(Struct, frozen=True, tag=23, array_like=True):
    """ps -> reader, with the blocks that have changed. A ps that ends sends a last one without being asked."""

    version: f.Version
    lineage: f.Token
    """Random, made with the first values of the shard; a new one means that values were lost or reset."""
    term: f.TermNumber
    job: f.Token
    last_version: f.Version
    """Version at which the current training ends; 0 before the first."""
    is_new: bool
    """Whether anything has changed since the last `Values` that had values."""
    changed: Annotated[tuple[Annotated[int, Meta(ge=WHOLE)], ...], Meta(max_length=LIMITS.blocks)] = ()
    """For each block: `WHOLE`, or how many of its rows are sent. The body has, for each block in order: all of it; or
    the numbers of these rows as uint32, then the rows; or nothing for 0. Empty: no values are sent."""
    over: bool = False
    """Whether this ps is ending."""
    why: f.Text = ""
    """The reason it ends."""
    waited_s: float = 0.0
    """Seconds the ps has waited for the requested version."""


Upward = Follow | Look | Read
"""Messages from a reader."""
Downward = Values | Failure
"""Messages from a ps."""
