"""What a reader says to the ps of a job whose params it follows, and what they answer.

A reader is no worker: it joins nothing, and no rule, lease or barrier knows of it. It asks for the layout by a control
call, and opens a stream to each shard. What is sent on a stream is what has changed since the answer before it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.wire import fields as f
from trainband.wire.limits import LIMITS
from trainband.wire.messages import Failure, SliceRecord, VariableRecord

WHOLE = -1
"""All of a block, see `Values.changed`."""

MOST_WAIT_S = 5.0
"""How long a ps waits for the version that a `Read` wants."""


class JobLayout(Struct, frozen=True):
    """`layout` (asked with an empty body) -> `JobLayout`: the ps of the job, and what lies where.

    Without variables where no model is defined yet.
    """

    task: f.PeerName
    """Who answers."""
    addresses: Annotated[tuple[f.Word, ...], Meta(max_length=LIMITS.tasks)]
    """Of each ps, as the cluster spec has them."""
    standbys: Annotated[int, Meta(ge=0, le=1)] = 0
    variables: Annotated[tuple[VariableRecord, ...], Meta(max_length=LIMITS.variables)] = ()
    slices: Annotated[tuple[SliceRecord, ...], Meta(max_length=LIMITS.slices)] = ()
    job: f.Token = ""
    """Random, made by the chief: which job this is."""


class Follow(Struct, frozen=True, tag=20, array_like=True):
    """reader -> ps, first frame: the shard whose values are wanted."""

    shard: f.PsNumber


class Look(Struct, frozen=True, tag=21, array_like=True):
    """reader -> ps: which version is there? Answered by `Values` without any."""


class Read(Struct, frozen=True, tag=22, array_like=True):
    """reader -> ps: send what has changed; answered by `Values`."""

    at: f.Version = 0
    """The version that is wanted, if it is yet to come; what is there when it has not come in time."""
    wait_s: float = 0.0
    """How long to wait for it."""


class Values(Struct, frozen=True, tag=23, array_like=True):
    """ps -> reader, with the blocks that have changed. A ps that ends sends one more without being asked."""

    version: f.Version
    lineage: f.Token
    """Random, made with the first values of the shard; another one means that values were lost or begun anew."""
    term: f.TermNumber
    job: f.Token
    last_version: f.Version
    """At which the training under way ends; 0 before the first."""
    is_new: bool
    """Whether anything has changed since the last `Values` that brought values."""
    changed: Annotated[tuple[Annotated[int, Meta(ge=WHOLE)], ...], Meta(max_length=LIMITS.blocks)] = ()
    """Of each block: `WHOLE`, or how many of its rows come. The body has, of each block in order: all of it; or the
    numbers of these rows as uint32 and then the rows; or, where that is 0, nothing. Empty: no values come."""
    over: bool = False
    """Whether this ps ends."""
    why: f.Text = ""
    """It ends."""
    waited_s: float = 0.0
    """How long the ps has waited for the version that was asked for."""


Upward = Follow | Look | Read
"""What a reader sends."""
Downward = Values | Failure
"""What a ps sends."""
