"""Columns of categories: by number, by a vocabulary, or by hash; and their weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, float32, int64, string
from trainband.compat.tf1.feature_columns.column import (
    UNKNOWN,
    CategoricalColumn,
    Features,
    Ids,
    categories,
    weights_of,
)
from trainband.compat.tf1.feature_columns.parsing import any_length
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, NotFoundError
from trainband.compat.tf1.input.hashes import fingerprint
from trainband.runtime.overrides import override
from trainband.runtime.regular_files import READ_WHOLE, read_regular


@dataclass(frozen=True)
class _KeyedColumn(CategoricalColumn):
    """Categories of one feature."""

    key: str
    dtype: DType

    @property
    @override
    def name(self) -> str:
        return self.key

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: any_length(self.dtype)}

    def number(self, values: Any) -> Any:
        """The numbers of values' categories; `UNKNOWN` for those that are in none."""
        raise NotImplementedError

    @override
    def ids(self, features: Features) -> Ids:
        return features.once(self, lambda: Ids(categories(self.feature(features), self.number, f"{self.key}_lookup")))

    def feature(self, features: Features) -> Any:
        """The feature.

        Raises:
          ValueError: it is text where the column's dtype is numbers, or the other way round.
        """
        feature = features.raw(self.key)
        held = getattr(feature, "dtype", None) or feature.values.dtype
        if (held == string) != (self.dtype == string) or not (held == string or held.is_integer):
            raise ValueError(
                f"Column dtype and SparseTensors dtype must be compatible. key: {self.key}, column dtype: "
                f"{self.dtype.name}, tensor dtype: {held.name}"
            )
        return feature


@dataclass(frozen=True)
class IdentityColumn(_KeyedColumn):
    """Categories that are numbers already."""

    num_buckets: int
    default_value: int | None

    @property
    @override
    def buckets(self) -> int:
        return self.num_buckets

    @override
    def number(self, values: Any) -> Any:
        numbers = values.astype(np.int64)
        outside = (numbers < 0) | (numbers >= self.num_buckets)
        if self.default_value is not None:
            return np.where(outside, self.default_value, numbers)
        wrong = numbers[outside & (numbers != UNKNOWN)]
        if wrong.size:
            raise InvalidArgumentError(
                None,
                None,
                f"assert_less_than_num_buckets: {self.key} has {wrong.ravel()[0]}, but there are {self.num_buckets} "
                "buckets; give categorical_column_with_identity a default_value, or more of them",
            )
        return numbers


@dataclass(frozen=True)
class VocabularyColumn(_KeyedColumn):
    """Categories that a vocabulary lists: words, or the path of a file with a word in each line."""

    vocabulary: tuple[Any, ...] | str
    size: int
    default_value: int
    num_oov_buckets: int

    @property
    @override
    def buckets(self) -> int:
        return self.size + self.num_oov_buckets

    @override
    def number(self, values: Any) -> Any:
        places = _places(self.vocabulary, self.size, self.dtype)

        def place(value: Any) -> int:
            found = places.get(value)
            if found is None and self.num_oov_buckets:
                text = value if isinstance(value, bytes) else str(value).encode()
                return self.size + fingerprint(text) % self.num_oov_buckets
            return self.default_value if found is None else found

        return _each(values, place)


@functools.lru_cache(maxsize=64)
def _places(vocabulary: tuple[Any, ...] | str, size: int, dtype: DType) -> Mapping[Any, int]:
    """The number of each word."""
    words = vocabulary
    if isinstance(words, str):
        try:
            lines = read_regular(words, READ_WHOLE).splitlines()
        except FileNotFoundError:
            raise NotFoundError(None, None, f"{words}; No such file or directory") from None
        if size > len(lines):
            raise InvalidArgumentError(None, None, f"Invalid vocab_size in {words}: expected {size}, got {len(lines)}")
        words = tuple(lines[:size] if dtype == string else map(int, lines[:size]))
    return {word: number for number, word in enumerate(words)}


@dataclass(frozen=True)
class HashColumn(_KeyedColumn):
    """Categories by TensorFlow's hash of their text, or of the text of their numbers."""

    hash_bucket_size: int

    @property
    @override
    def buckets(self) -> int:
        return self.hash_bucket_size

    @override
    def number(self, values: Any) -> Any:
        def place(value: Any) -> int:
            text = value if isinstance(value, bytes) else str(value).encode()
            return fingerprint(text) % self.hash_bucket_size

        return _each(values, place)


@dataclass(frozen=True)
class WeightedColumn(CategoricalColumn):
    """Categories, each with a weight that is another feature."""

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: DType

    @property
    @override
    def name(self) -> str:
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return {**self.categorical_column.parse_example_spec, self.weight_feature_key: any_length(self.dtype)}

    @property
    @override
    def buckets(self) -> int:
        return self.categorical_column.buckets

    @override
    def ids(self, features: Features) -> Ids:
        ids = self.categorical_column.ids(features).ids
        key = self.weight_feature_key
        weights = features.once((self, key), lambda: weights_of(features.raw(key), self.dtype, f"{key}_weights"))
        return Ids(ids, weights)


def _each(values: Any, place: Any) -> Any:
    """Number values one by one, equal ones only once."""
    flat = values.ravel().tolist()
    known = {value: place(value) for value in set(flat)}
    return np.array([known[value] for value in flat], np.int64).reshape(values.shape)


def _of_categories(dtype: Any) -> DType:
    kind = as_dtype(dtype)
    if kind != string and not kind.is_integer:
        raise ValueError(f"dtype must be string or integer. dtype: {kind.name}.")
    return kind


def categorical_column_with_identity(key: str, num_buckets: int, default_value: int | None = None) -> IdentityColumn:
    """Categories that are numbers from 0 to before `num_buckets`.

    Raises:
      ValueError: there are no buckets, or the default value is none of them.
    """
    if num_buckets < 1:
        raise ValueError(f"num_buckets {num_buckets} < 1, column_name {key}")
    if default_value is not None and not 0 <= default_value < num_buckets:
        raise ValueError(f"default_value {default_value} not in range [0, {num_buckets}), column_name {key}")
    return IdentityColumn(key, int64, num_buckets, default_value)


def categorical_column_with_hash_bucket(key: str, hash_bucket_size: int, dtype: Any = string) -> HashColumn:
    """Categories by hash, in buckets.

    Raises:
      ValueError: there are no buckets, or the dtype is neither text nor whole numbers.
    """
    if hash_bucket_size is None:
        raise ValueError(f"hash_bucket_size must be set. key: {key}")
    if hash_bucket_size < 1:
        raise ValueError(f"hash_bucket_size must be at least 1. hash_bucket_size: {hash_bucket_size}, key: {key}")
    return HashColumn(key, _of_categories(dtype), hash_bucket_size)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyColumn:
    """Categories that a list names; others are in none, in that of `default_value`, or in buckets by hash.

    Raises:
      ValueError: the list is empty or names something twice, or the other arguments contradict each other.
    """
    words = np.asarray(vocabulary_list).tolist() if vocabulary_list is not None else []
    if not words:
        raise ValueError(f"vocabulary_list {vocabulary_list} must be non-empty, column_name: {key}")
    if len(set(words)) != len(words):
        raise ValueError(f"Duplicate keys in vocabulary_list {vocabulary_list}, column_name: {key}")
    is_text = isinstance(words[0], str | bytes)
    if not is_text and not all(isinstance(word, int) for word in words):
        raise ValueError(f"vocabulary dtype must be string or integer: {vocabulary_list}, column_name: {key}")
    kind = _of_categories(dtype if dtype is not None else string if is_text else int64)
    if is_text != (kind == string):
        raise ValueError(f"dtype {kind.name} and vocabulary dtype do not match, column_name: {key}")
    vocabulary = tuple(word.encode() if isinstance(word, str) else word for word in words)
    return _by_vocabulary(key, vocabulary, len(words), kind, default_value, num_oov_buckets)


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: Any,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: Any = string,
) -> VocabularyColumn:
    """Like `categorical_column_with_vocabulary_list`, with the lines of a file.

    Raises:
      ValueError: the file is needed for the size and does not exist, or arguments contradict each other.
    """
    if not vocabulary_file:
        raise ValueError(f"Missing vocabulary_file in {key}.")
    path, size = Path(str(vocabulary_file)), vocabulary_size
    if size is None:
        if not path.exists():
            raise ValueError(f"vocabulary_file in {key} does not exist.")
        size = len(read_regular(path, READ_WHOLE).splitlines())
    if size < 1:
        raise ValueError(f"Invalid vocabulary_size in {key}: {size}.")
    default = -1 if default_value is None else default_value
    return _by_vocabulary(key, str(path), size, _of_categories(dtype), default, num_oov_buckets)


def _by_vocabulary(
    key: str, vocabulary: tuple[Any, ...] | str, size: int, kind: DType, default: int, oov: int
) -> VocabularyColumn:
    if oov < 0:
        raise ValueError(f"Invalid num_oov_buckets {oov} in {key}.")
    if oov and default != UNKNOWN:
        raise ValueError(f"Can't specify both num_oov_buckets and default_value in {key}.")
    return VocabularyColumn(key, kind, vocabulary, size, default, oov)


def weighted_categorical_column(
    categorical_column: CategoricalColumn, weight_feature_key: str, dtype: Any = float32
) -> WeightedColumn:
    """Categories with weights, which another feature has in the same places.

    Raises:
      ValueError: the dtype is not of numbers.
    """
    kind = None if dtype is None else as_dtype(dtype)
    if kind is None or not (kind.is_integer or kind.is_floating):
        raise ValueError(f"dtype {dtype} is not convertible to float.")
    return WeightedColumn(categorical_column, weight_feature_key, as_dtype(dtype))
