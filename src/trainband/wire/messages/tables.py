"""Records of tables."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from trainband.wire.limits import LIMITS
from trainband.wire.messages import fields as f


class Choice(Struct, frozen=True):
    """One of the optimizers, initializers or rules of `trainband.rows`, with its settings."""

    kind: f.Word
    settings: Annotated[dict[f.Word, int | float | None], Meta(max_length=LIMITS.rule_settings)] = {}


class TableRecord(Struct, frozen=True):
    """A table, see `trainband.rows.Table`."""

    name: f.Name
    dim: Annotated[int, Meta(ge=1, le=1 << 20)]
    optimizer: Choice
    initializer: Choice
    admit: Choice | None = None
    evict: Choice | None = None
    max_rows: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    keep: Literal["recent", "frequent"] = "recent"
    dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    seed: f.Count = 0
    ids: Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")] | None = None
    """One more than the largest id, as text: it may be 2**64."""
