"""`tf.distribute.experimental.partitioners`: into how many parts a variable is divided, along each axis."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.operations import partitioners
from trainband.compat.tf2.eager.shapes import TensorShape


class Partitioner:
    """Says into how many parts a variable of a shape and dtype is divided, along each axis."""

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        raise NotImplementedError


class FixedShardsPartitioner(Partitioner):
    """Always as many parts.

    Args:
      num_shards: how many.
    """

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        return partitioners.fixed_size_partitioner(self._num_shards, axis)(TensorShape(shape), dtype=as_dtype(dtype))


class MinSizePartitioner(Partitioner):
    """As many parts as possible, none smaller than a size.

    Args:
      min_shard_bytes: the size.
      max_shards: how many parts at most.
      bytes_per_string: what a string counts for.

    Raises:
      ValueError: one of them is not positive.
    """

    def __init__(self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = 16) -> None:
        for name, value in (
            ("min_shard_bytes", min_shard_bytes),
            ("max_shards", max_shards),
            ("bytes_per_string", bytes_per_string),
        ):
            if value < 1:
                raise ValueError(f"Argument `{name}` must be positive. Received: {value}")
        self._settings = (max_shards, min_shard_bytes, bytes_per_string)

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        most, least, each = self._settings
        return partitioners.min_max_variable_partitioner(most, axis, least, each)(TensorShape(shape), as_dtype(dtype))


class MaxSizePartitioner(Partitioner):
    """As few parts as possible, none larger than a size.

    Args:
      max_shard_bytes: the size.
      max_shards: how many parts at most, whatever their size.
      bytes_per_string: what a string counts for.

    Raises:
      ValueError: one of them is not positive.
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16) -> None:
        for name, value in (
            ("max_shard_bytes", max_shard_bytes),
            ("max_shards", max_shards),
            ("bytes_per_string", bytes_per_string),
        ):
            if value is not None and value < 1:
                raise ValueError(f"Argument `{name}` must be positive. Received {value}")
        self._settings = (max_shard_bytes, max_shards, bytes_per_string)

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        size, most, each = self._settings
        cut = partitioners.variable_axis_size_partitioner(size, axis, each, most)
        return cut(TensorShape(shape), as_dtype(dtype))
