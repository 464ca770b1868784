"""Partitions: which piece of a whole value each part of a partitioned variable holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.variable import Variable


def pieces(parts: Sequence[Variable], whole: Any) -> Iterator[tuple[Variable, Any]]:
    """(part, its piece of the whole value), in order; a variable by itself has all of it."""
    start, axis = 0, axis_of(parts)
    for part in parts:
        piece = whole
        if len(parts) > 1:
            length = part.shape.as_list()[axis] or 0
            piece = np.take(whole, np.arange(start, start + length), axis)
            start += length
        yield part, piece


def axis_of(parts: Sequence[Variable]) -> int:
    """Along which axis the parts of one variable were cut."""
    first, last = parts[0].shape.as_list(), parts[-1].shape.as_list()
    whole = next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)
    info = parts[0].op.attributes.get("axis", 0)
    return int(info) if whole is None else whole
