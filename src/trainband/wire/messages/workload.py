"""Workload: a worker's report of the work in a push, used by a rule to divide the examples of the next updates."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MOST_PARTS = 1 << 20
"""Parts of one push: far more than a worker computes sequentially."""

LONGEST_S = 1e9
"""Seconds; the bound also excludes values that are not finite."""

Parts = Annotated[int, Meta(ge=0, le=MOST_PARTS)]


class Workload(Struct, frozen=True, array_like=True):
    """The work a worker did for one push, in parts: equal numbers of examples, the unit of shares."""

    seconds: Annotated[float, Meta(ge=0, le=LONGEST_S)]
    """Time it took, including waiting for data; 0 if not meaningful, as in a step that was compiled."""
    parts: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    """Parts in this push."""
    usual: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    """Parts in a step of this worker if the examples are not divided."""
    part_examples: Annotated[int, Meta(ge=1, le=1 << 48)]
    """Examples in a part."""
