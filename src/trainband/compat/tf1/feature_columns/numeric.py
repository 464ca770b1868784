"""Columns of numbers: as they are, or as the ranges that they fall into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from trainband.compat.ops import math
from trainband.compat.ops.dtypes import DType, as_dtype, float32, string
from trainband.compat.ops.feature_columns import buckets_of, counted_ids, ids_of_buckets
from trainband.compat.tf1.feature_columns.column import CategoricalColumn, DenseColumn, Features, Ids, is_sparse
from trainband.compat.tf1.feature_columns.parsing import fixed_length
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.recorder import recorded
from trainband.runtime.overrides import override


@dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """Numbers as they are."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: DType
    normalizer_fn: Callable[[Any], Any] | None

    @property
    @override
    def name(self) -> str:
        return self.key

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: fixed_length(self.shape, self.dtype, self.default_value)}

    @property
    @override
    def size(self) -> int:
        return prod(self.shape)

    def values(self, features: Features) -> Tensor:
        """The numbers as float32, in the shape in which they come.

        Raises:
          ValueError: the feature is sparse, or text.
        """
        feature = features.raw(self.key)
        if is_sparse(feature):
            raise ValueError(
                "The corresponding Tensor of numerical column must be a Tensor. SparseTensor is not supported. key: "
                f"{self.key}"
            )
        if feature.dtype == string:
            raise ValueError(f"numeric_column {self.key} is text; use a categorical column.")
        if self.normalizer_fn is not None:
            feature = convert(self.normalizer_fn(feature))
        number: Tensor = recorded(math.cast)(feature, float32)
        return number

    @override
    def dense(self, features: Features) -> Tensor:
        return features.once((self, "dense"), lambda: reshape(self.values(features), [-1, self.size]))


@dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """The ranges that numbers fall into."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    @override
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return self.source_column.parse_example_spec

    @property
    @override
    def buckets(self) -> int:
        return (len(self.boundaries) + 1) * self.source_column.size

    @property
    @override
    def size(self) -> int:
        return self.buckets

    def _buckets(self, features: Features) -> Any:
        values = self.source_column.dense(features)
        return features.once(self, lambda: recorded(buckets_of)(values, self.boundaries))

    @override
    def ids(self, features: Features) -> Ids:
        return Ids(recorded(ids_of_buckets)(self._buckets(features), len(self.boundaries) + 1))

    @override
    def dense(self, features: Features) -> Tensor:
        counted: Tensor = recorded(counted_ids)(self.ids(features).ids, None, self.buckets)
        return counted


def numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: Any = None,
    dtype: Any = float32,
    normalizer_fn: Callable[[Any], Any] | None = None,
) -> NumericColumn:
    """Numbers, `shape` of them for each example.

    Raises:
      ValueError: the shape or dtype is not valid.
      TypeError: the function cannot be called, or the default value is of another kind.
    """
    sizes = tuple([shape] if isinstance(shape, int) else shape)
    if any(not isinstance(size, int | np.integer) for size in sizes):
        raise TypeError(f"shape dimensions must be integer. shape: {sizes}")
    if any(size < 1 for size in sizes):
        raise ValueError(f"shape dimensions must be greater than 0. shape: {sizes}")
    kind = as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype must be convertible to float. dtype: {kind.name}, key: {key}")
    if normalizer_fn is not None and not callable(normalizer_fn):
        raise TypeError(f"normalizer_fn must be a callable. Given: {normalizer_fn}")
    default = None if default_value is None else _plain(_filled(default_value, sizes, kind, key).tolist())
    return NumericColumn(key, sizes, default, kind, normalizer_fn)


def _filled(value: Any, shape: tuple[int, ...], kind: DType, key: str) -> np.ndarray[Any, Any]:
    """A default value for each number of a column."""
    found = np.asarray(value)
    if found.dtype.kind not in ("iu" if kind.is_integer else "iuf"):
        raise TypeError(
            f"default_value must be compatible with dtype. default_value: {value}, dtype: {kind.name}, key: {key}"
        )
    if found.shape not in ((), shape):
        raise ValueError(
            f"The shape of default_value must be equal to given shape. default_value: {value}, shape: {shape}, "
            f"key: {key}"
        )
    return np.broadcast_to(found, shape).astype(kind.numpy)


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def bucketized_column(source_column: Any, boundaries: Sequence[float]) -> BucketizedColumn:
    """The range that each number falls into: below the first boundary, from one to before the next, and so on.

    Raises:
      ValueError: the source is no numeric column of one dimension, or the boundaries do not ascend.
    """
    if not isinstance(source_column, NumericColumn):
        raise ValueError(f"source_column must be a column generated with numeric_column(). Given: {source_column}")
    if len(source_column.shape) > 1:
        raise ValueError(f"source_column must be one-dimensional column. Given: {source_column}")
    edges = tuple(boundaries)
    if not edges or any(a >= b for a, b in pairwise(edges)):
        raise ValueError("boundaries must be a sorted list.")
    return BucketizedColumn(source_column, edges)
