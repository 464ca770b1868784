"""Workload: what a worker says of the work in a push, from which a rule divides the examples of the next updates."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MOST_PARTS = 1 << 20
"""Of one push: far more than anybody computes one after the other."""

LONGEST_S = 1e9
"""Seconds; as a bound, it keeps out what is not finite, too."""

Parts = Annotated[int, Meta(ge=0, le=MOST_PARTS)]


class Workload(Struct, frozen=True, array_like=True):
    """What a worker has computed for one push, in parts: equal numbers of examples, by which shares are counted."""

    seconds: Annotated[float, Meta(ge=0, le=LONGEST_S)]
    """That it took, with waiting for its data; 0 where they say nothing, as in a step that was compiled."""
    parts: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    """In this push."""
    usual: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    """In a step of this worker where nobody divides the examples."""
    part_examples: Annotated[int, Meta(ge=1, le=1 << 48)]
    """Examples in a part."""
