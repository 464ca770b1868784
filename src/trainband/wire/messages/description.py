"""The description of a job's model and settings, on which all its tasks must agree."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f
from trainband.wire.messages.tables import TableRecord


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
    """Everything that all tasks of a job must agree on, in plain values that can be compared."""

    variables: Annotated[tuple[VariableRecord, ...], Meta(max_length=LIMITS.variables)]
    slices: Annotated[tuple[SliceRecord, ...], Meta(max_length=LIMITS.slices)]
    ps_count: Annotated[int, Meta(ge=1, le=LIMITS.tasks)]
    rule: f.RuleSettings
    update_text: f.UpdateText
    """The traced update program (a jaxpr) as text: it differs between different optimizers."""
    jax_version: f.Word
    push_dtype: f.Word = ""
    """The dtype in which gradients are sent; empty: unchanged."""
    pull_dtype: f.Word = ""
    """The dtype in which the answers to pushes send the params; empty: unchanged."""
    state_merge: f.Word = "mean"
    """How model states that several workers push for one update are merged: `mean` or `chief`."""
    standbys: Annotated[int, Meta(ge=0, le=1)] = 0
    """Number of standbys of each shard: 0 or 1."""
    stall_s: float = 0.0
    """Seconds without a push after which an awaited worker is ignored; 0 for never."""
    tables: Annotated[tuple[TableRecord, ...], Meta(max_length=LIMITS.tables)] = ()
    """The tables of the job."""
