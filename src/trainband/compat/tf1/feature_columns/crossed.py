"""Columns of combinations of categories, by hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.tf1.feature_columns.categorical import HashColumn
from trainband.compat.tf1.feature_columns.column import (
    ABSENT,
    CategoricalColumn,
    Features,
    Ids,
    categories,
    is_sparse,
)
from trainband.compat.tf1.feature_columns.parsing import any_length
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.input.hashes import CROSSING_KEY, fingerprint, fingerprint_of_both
from trainband.runtime.overrides import override

_MASK = (1 << 64) - 1
_NOTHING = -(1 << 63)
"""In place of a value of a sparse feature: there is none. Whatever a dense feature has counts, even if it is empty."""


@dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """Combinations of categories of several features, in buckets by TensorFlow's hash of all of them."""

    keys: tuple[Any, ...]
    hash_bucket_size: int
    hash_key: int | None

    @property
    @override
    def name(self) -> str:
        return "_X_".join(sorted(one if isinstance(one, str) else one.name for one in self.leaves()))

    def leaves(self) -> list[Any]:
        """The features and columns that are crossed, those of crossed columns within it among them."""
        return [leaf for key in self.keys for leaf in (key.leaves() if isinstance(key, CrossedColumn) else [key])]

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in self.keys:
            found |= {key: any_length(string)} if isinstance(key, str) else key.parse_example_spec
        return found

    @property
    @override
    def buckets(self) -> int:
        return self.hash_bucket_size

    @override
    def ids(self, features: Features) -> Ids:
        return features.once(self, lambda: Ids(self._recorded(features)))

    def _recorded(self, features: Features) -> Tensor:
        leaves = self.leaves()
        parts = [_hashes(leaf, features) for leaf in leaves]
        empty = [_NOTHING if isinstance(leaf, str) else ABSENT for leaf in leaves]

        def cross(_: Any, *values: Any) -> Sequence[Any]:
            rows = [self._row(row, empty) for row in zip(*values, strict=True)]
            widest = max(map(len, rows), default=0) or 1
            found = np.full((len(rows), 1 << (widest - 1).bit_length()), ABSENT, np.int64)
            for place, row in enumerate(rows):
                found[place, : len(row)] = row
            return [found]

        batch = next((part.shape.sizes[0] for part in parts if part.shape.sizes), None)
        single = all(part.shape.sizes and part.shape.sizes[1] == 1 for part in parts)
        shape = [batch, 1 if single else None]
        return record_source("SparseCross", cross, parts, dtypes=[int64], shapes=[shape], name=self.name).outputs[0]

    def _row(self, row: Sequence[Any], empty: Sequence[int]) -> list[int]:
        """The combinations of what one example has of each."""
        several = [[value for value in part.tolist() if value != none] for part, none in zip(row, empty, strict=True)]
        start = self.hash_key or CROSSING_KEY
        found = []
        for one in product(*several):
            total = start
            for value in one:
                total = fingerprint_of_both(total, value & _MASK)
            found.append(total % self.hash_bucket_size)
        return found


def _hashes(leaf: Any, features: Features) -> Tensor:
    """Record what is crossed: the numbers of categories, and the fingerprints of text."""
    if not isinstance(leaf, str):
        found: Ids = leaf.ids(features)
        return found.ids
    feature = features.raw(leaf)
    held = feature.values.dtype if is_sparse(feature) else feature.dtype
    if held.is_floating:
        raise ValueError(f"Column dtype should be string or integer to be crossed. key: {leaf}, dtype: {held.name}")
    number: Callable[[Any], Any] = _signed_fingerprints if held == string else lambda values: values.astype(np.int64)
    return features.once(("crossed", leaf), lambda: categories(feature, number, leaf, _NOTHING))


def _signed_fingerprints(values: Any) -> Any:
    found = [fingerprint(text) for text in values.ravel()]
    return np.array(found, np.uint64).astype(np.int64).reshape(values.shape)


def crossed_column(keys: Any, hash_bucket_size: int, hash_key: int | None = None) -> CrossedColumn:
    """Every combination of the categories of several features or columns, in buckets by hash.

    Raises:
      ValueError: there are fewer than two, no buckets, or a column that is hashed already.
    """
    if not isinstance(keys, list | tuple) or len(keys) < 2:
        raise ValueError(f"keys must be a list with length > 1. Given: {keys}")
    if hash_bucket_size is None or hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be > 1. hash_bucket_size: {hash_bucket_size}")
    for key in keys:
        if isinstance(key, HashColumn):
            raise ValueError(
                f"categorical_column_with_hash_bucket is not supported for crossing: give its key, {key.key!r}."
            )
        if not isinstance(key, str | CategoricalColumn):
            raise ValueError(
                f"Unsupported key type. All keys must be either string, or categorical column. Given: {key}"
            )
    return CrossedColumn(tuple(keys), hash_bucket_size, hash_key)
