"""Parsing of `Example` and `SequenceExample` messages into tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from trainband.compat.ops.dtypes import DType, int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.features import (
    KINDS,
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    checked,
    default_of,
    kind_of,
)
from trainband.compat.tf1.input.packing import stacked
from trainband.compat.tf1.protos.example import Example, SequenceExample

Found = Mapping[str, Any]
"""The features of a message, by name."""


def parse_example(serialized: Any, features: Any, name: str | None = None, example_names: Any = None) -> dict[str, Any]:
    """Tensors of the features of several `Example` messages, with one row for each.

    Raises:
      InvalidArgumentError (in a run): a message is damaged, or a feature is missing or of another kind or size.
    """
    return _parsed(serialized, features, name or "ParseExample", example_names, is_single=False)


def parse_single_example(
    serialized: Any, features: Any, name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """Tensors of the features of one `Example` message.

    Raises:
      InvalidArgumentError (in a run): the message is damaged, or a feature is missing or of another kind or size.
    """
    return _parsed(serialized, features, name or "ParseSingleExample", example_names, is_single=True)


def _parsed(serialized: Any, features: Any, name: str, example_names: Any, *, is_single: bool) -> dict[str, Any]:
    del example_names
    fields = [_Field(key, feature, is_single) for key, feature in checked(features).items()]
    texts = convert(serialized, string)
    rows = [] if is_single else (texts.shape.as_list()[:1] if texts.shape.sizes is not None else [None])

    def parse(_: Any, messages: Any) -> list[Any]:
        if is_single == bool(messages.ndim):
            raise InvalidArgumentError(None, op, f"Expected serialized to be a {'scalar' if is_single else 'vector'}")
        every = [_features_of(message, number) for number, message in enumerate(messages.reshape(-1))]
        return [array for field in fields for array in field.arrays(every)]

    with name_scope(name, None, None):
        op = record_source(
            "ParseSingleExample" if is_single else "ParseExample",
            parse,
            [texts],
            dtypes=[dtype for field in fields for dtype in field.dtypes],
            shapes=[shape for field in fields for shape in field.shapes(rows)],
        )
    return _by_name(fields, op.outputs)


def _by_name(fields: Sequence[_Field], outputs: Sequence[Any]) -> dict[str, Any]:
    found, rest = {}, iter(outputs)
    for field in fields:
        parts = [next(rest) for _ in field.dtypes]
        found[field.key] = SparseTensor(*parts) if len(parts) == 3 else parts[0]
    return found


def _features_of(message: Any, number: int) -> Found:
    try:
        found: Found = Example.FromString(message).features.feature
    except (DecodeError, TypeError) as exc:
        raise InvalidArgumentError(
            None, None, f"Could not parse example input, value: {message!r}, number {number}"
        ) from exc
    return found


class _Field:
    """A feature that is parsed, and the tensors that come of it."""

    def __init__(self, key: str, feature: Any, is_single: bool) -> None:
        self.key, self._feature, self._is_single = key, feature, is_single
        self._dtype = kind_of(feature)
        self._is_sparse = isinstance(feature, VarLenFeature | SparseFeature)
        self._default = None if self._is_sparse else default_of(feature)
        self._row = [] if self._is_sparse else TensorShape(feature.shape).as_list()
        self._fixed = tuple(size or 0 for size in self._row)
        self._size = int(np.prod(self._fixed))

    @property
    def dtypes(self) -> list[DType]:
        """Of the tensors: one, or the three of a sparse one."""
        return [int64, self._dtype, int64] if self._is_sparse else [self._dtype]

    def shapes(self, rows: Sequence[Any]) -> list[Any]:
        """Of the tensors, of which `rows` come first."""
        if self._is_sparse:
            rank = len(rows) + self._axes()
            return [[None, rank], [None], [rank]]
        middle = [None] if isinstance(self._feature, FixedLenSequenceFeature) else []
        return [[*rows, *middle, *self._row]]

    def _axes(self) -> int:
        keys = getattr(self._feature, "index_key", "")
        return 1 if isinstance(keys, str) else len(keys)

    def arrays(self, every: Sequence[Found]) -> Sequence[Any]:
        """What comes of some messages."""
        feature = self._feature
        if isinstance(feature, FixedLenFeature):
            if self._is_single:
                return [self._row_of(every[0], 0)]
            return [stacked_rows([self._row_of(one, i) for i, one in enumerate(every)], self._dtype, self._fixed)]
        if isinstance(feature, FixedLenSequenceFeature):
            lists = [self._steps_of(one, i) for i, one in enumerate(every)]
            return [lists[0] if self._is_single else padded(lists, self._dtype, self._fixed, self._default)]
        if isinstance(feature, VarLenFeature):
            found = [self._ragged(one, i) for i, one in enumerate(every)]
        else:
            found = [self._sparse_of(one, i) for i, one in enumerate(every)]
        if self._is_single:
            return found[0]
        if not found:
            return [
                np.zeros([0, 1 + self._axes()], np.int64),
                np.zeros(0, self._dtype.numpy),
                np.zeros(1 + self._axes(), np.int64),
            ]
        return stacked(found, self._dtype)

    def _values(self, found: Found, key: str, dtype: DType, number: int) -> np.ndarray[Any, Any] | None:
        feature = found.get(key) if hasattr(found, "get") else None
        return values_of(feature, dtype, key, number)

    def _row_of(self, found: Found, number: int) -> np.ndarray[Any, Any]:
        values = self._values(found, self.key, self._dtype, number)
        if values is None:
            if self._default is None:
                raise InvalidArgumentError(
                    None,
                    None,
                    f"Name: <unknown>, Feature: {self.key} (data type: {_name_of(self._dtype)}) is required but could "
                    "not be found.",
                )
            return self._default
        if len(values) != self._size:
            raise InvalidArgumentError(
                None,
                None,
                f"Key: {self.key}, Index: {number}.  Number of {_name_of(self._dtype)} values != expected.  Values "
                f"size: {len(values)} but output shape: {list(self._fixed)}",
            )
        return values.reshape(self._fixed)

    def _steps_of(self, found: Found, number: int) -> np.ndarray[Any, Any]:
        values = self._values(found, self.key, self._dtype, number)
        if values is None:
            if not self._feature.allow_missing:
                raise InvalidArgumentError(
                    None, None, f"Feature: {self.key} is required but could not be found (index {number})."
                )
            values = np.zeros(0, self._dtype.numpy)
        if len(values) % max(1, self._size):
            raise InvalidArgumentError(
                None,
                None,
                f"Key: {self.key}, Index: {number}.  Number of values {len(values)} is not a multiple of {self._size}",
            )
        return values.reshape(-1, *self._fixed)

    def _ragged(self, found: Found, number: int) -> tuple[Any, Any, Any]:
        values = self._values(found, self.key, self._dtype, number)
        if values is None:
            values = np.zeros(0, self._dtype.numpy)
        return np.arange(len(values), dtype=np.int64)[:, None], values, np.array([len(values)], np.int64)

    def _sparse_of(self, found: Found, number: int) -> tuple[Any, Any, Any]:
        feature = self._feature
        several = not isinstance(feature.index_key, str)
        keys = list(feature.index_key) if several else [feature.index_key]
        sizes = [int(one) for one in (feature.size if several else [feature.size])]
        empty = np.zeros(0, self._dtype.numpy)
        values = self._values(found, feature.value_key, self._dtype, number)
        values = empty if values is None else values
        columns = [self._values(found, key, int64, number) for key in keys]
        indices = np.column_stack([np.zeros(0, np.int64) if one is None else one for one in columns])
        if len(indices) != len(values):
            raise InvalidArgumentError(
                None, None, f"Key: {self.key}, Index: {number}.  {len(indices)} places and {len(values)} values"
            )
        if not feature.already_sorted:
            order = np.lexsort(indices.T[::-1])
            indices, values = indices[order], values[order]
        return indices, values, np.array(sizes, np.int64)


def values_of(feature: Any, dtype: DType, key: str, number: int) -> np.ndarray[Any, Any] | None:
    """The values of a feature; `None` if it is missing.

    Raises:
      InvalidArgumentError: it holds values of another kind.
    """
    kind = None if feature is None else feature.WhichOneof("kind")
    if kind is None:
        return None
    if kind != KINDS[dtype]:
        raise InvalidArgumentError(
            None,
            None,
            f"Key: {key}, Index: {number}.  Data types don't match. Expected type: {_name_of(dtype)}, found {kind}",
        )
    values = getattr(feature, kind).value
    if dtype == string:
        found = np.empty(len(values), object)
        found[:] = list(values)
        return found
    return np.array(values, dtype.numpy)


def _name_of(dtype: DType) -> str:
    return "float" if dtype.is_floating else dtype.name


def stacked_rows(rows: Sequence[Any], dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Arrays of one shape as rows."""
    found = np.empty([len(rows), *shape], dtype.numpy)
    for i, row in enumerate(rows):
        found[i] = row[()]  # of text, itself rather than an array of it
    return found


def padded(lists: Sequence[Any], dtype: DType, shape: tuple[int, ...], filler: Any = None) -> np.ndarray[Any, Any]:
    """Arrays with first axes of different sizes as rows, padded at their ends."""
    longest = max((len(one) for one in lists), default=0)
    empty = (b"" if dtype == string else 0) if filler is None else filler
    found = np.full([len(lists), longest, *shape], empty, dtype.numpy)
    for i, one in enumerate(lists):
        found[i, : len(one)] = one
    return found


def parse_single_sequence_example(
    serialized: Any,
    context_features: Any = None,
    sequence_features: Any = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of the features of one `SequenceExample`: (of its context, of its steps)."""
    del example_name
    if not context_features and not sequence_features:
        raise ValueError("Missing features.")
    context = [_Field(key, one, True) for key, one in (checked(context_features) if context_features else {}).items()]
    steps = [_Steps(key, one) for key, one in (checked(sequence_features) if sequence_features else {}).items()]

    def parse(_: Any, message: Any) -> list[Any]:
        try:
            whole = SequenceExample.FromString(message.item())
        except (DecodeError, TypeError) as exc:
            raise InvalidArgumentError(None, op, f"Could not parse a SequenceExample: {message!r}") from exc
        found = [array for field in context for array in field.arrays([whole.context.feature])]
        return found + [array for one in steps for array in one.arrays(whole.feature_lists.feature_list)]

    fields: list[Any] = [*context, *steps]
    op = record_source(
        "ParseSingleSequenceExample",
        parse,
        [convert(serialized, string)],
        dtypes=[dtype for field in fields for dtype in field.dtypes],
        shapes=[shape for field in fields for shape in field.shapes([])],
        name=name,
    )
    found = _by_name(fields, op.outputs)
    return {one.key: found[one.key] for one in context}, dict(
        zip([one.key for one in steps], _last(fields, len(context), op.outputs), strict=True)
    )


def _last(fields: Sequence[Any], count: int, outputs: Sequence[Any]) -> list[Any]:
    skipped = sum(len(field.dtypes) for field in fields[:count])
    return list(_by_name(fields[count:], outputs[skipped:]).values())


class _Steps(_Field):
    """A feature of the steps of a sequence."""

    def __init__(self, key: str, feature: Any) -> None:
        super().__init__(key, feature, True)
        if not isinstance(feature, FixedLenSequenceFeature | VarLenFeature):
            raise TypeError(f"Sequence feature {key} must be FixedLenSequenceFeature or VarLenFeature, not {feature}.")

    def _axes(self) -> int:
        return 2

    def arrays(self, every: Any) -> Sequence[Any]:
        """What comes of the lists of a message."""
        if self.key not in every and not self._is_sparse and not self._feature.allow_missing:
            raise InvalidArgumentError(None, None, f"Feature list '{self.key}' is required but could not be found.")
        listed = every[self.key].feature if self.key in every else []
        rows = [values_of(one, self._dtype, self.key, i) for i, one in enumerate(listed)]
        found = [np.zeros(0, self._dtype.numpy) if one is None else one for one in rows]
        if self._is_sparse:
            if not found:
                return [np.zeros([0, 2], np.int64), np.zeros(0, self._dtype.numpy), np.zeros(2, np.int64)]
            return stacked(
                [(np.arange(len(one), dtype=np.int64)[:, None], one, [len(one)]) for one in found], self._dtype
            )
        for i, one in enumerate(found):
            if len(one) != self._size:
                raise InvalidArgumentError(
                    None, None, f"Key: {self.key}, Index: {i}.  {len(one)} values where {self._size} were expected"
                )
        return [stacked_rows([one.reshape(self._fixed) for one in found], self._dtype, self._fixed)]
