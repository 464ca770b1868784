"""Partitions: which piece of a whole value each part of a partitioned variable holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainband.compat.tf1.graphs.variable import Variable


def pieces(parts: Sequence[Variable], whole: Any) -> Iterator[tuple[Variable, Any]]:
    """(part, its piece of the whole value), in order; a variable by itself has all of it."""
    for part in parts:
        info = part.save_slice
        if info is None or list(whole.shape) != list(info.full_shape):
            yield part, whole
            continue
        yield part, whole[tuple(slice(at, at + size) for at, size in zip(info.var_offset, info.var_shape, strict=True))]


def axis_of(parts: Sequence[Variable]) -> int:
    """Along which axis the parts of one variable were cut."""
    last = parts[-1].save_slice
    return 0 if last is None else next((axis for axis, begin in enumerate(last.var_offset) if begin), 0)
