"""Partitioners: how many parts a variable is split into."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The part of a whole variable that an initializer makes."""

    full_shape: tuple[int, ...]
    var_offset: tuple[int, ...]


Partitioner = Callable[..., list[int]]


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Split into a fixed number of parts along an axis."""

    def cut(shape: Any, **_: Any) -> list[int]:
        counts = [1] * len(shape)
        counts[axis] = min(num_shards, shape.as_list()[axis])
        return counts

    return cut


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Partitioner:
    """Split into parts of at most `max_shard_bytes`.

    Raises:
      ValueError: not more than 0 bytes.
    """
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes must be positive, got {max_shard_bytes}.")

    def cut(shape: Any, dtype: Any, **_: Any) -> list[int]:
        sizes = shape.as_list()
        each = bytes_per_string_element if dtype.name == "string" else dtype.size
        row = math.prod(size for i, size in enumerate(sizes) if i != axis) * each
        rows = max(1, max_shard_bytes // max(1, row))
        counts = [1] * len(sizes)
        counts[axis] = min(sizes[axis], math.ceil(sizes[axis] / rows), max_shards or sizes[axis])
        return counts

    return cut


def min_max_variable_partitioner(
    max_partitions: int = 1, axis: int = 0, min_slice_size: int = 256 << 10, bytes_per_string_element: int = 16
) -> Partitioner:
    """Split into as many parts as possible, none smaller than `min_slice_size` bytes."""

    def cut(shape: Any, dtype: Any, **_: Any) -> list[int]:
        sizes = shape.as_list()
        each = bytes_per_string_element if dtype.name == "string" else dtype.size
        total = math.prod(sizes) * each
        counts = [1] * len(sizes)
        counts[axis] = max(1, min(sizes[axis], max_partitions, math.ceil(total / min_slice_size)))
        return counts

    return cut
