"""`tf.RaggedTensor`: rows of different lengths, as the elements of all rows and the lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.execute import TENSORS, compute, convert
from trainband.compat.tf2.eager.function import TypeSpec
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known
from trainband.compat.tf2.operations.sparse import SparseTensor


class RaggedTensor:
    """Rows of different lengths.

    Args:
      values: the elements of all rows: a tensor, or rows of different lengths again.
      splits: where each row begins, and where the last ends.
    """

    def __init__(self, values: Any, splits: np.ndarray[Any, Any]) -> None:
        self.values = values if isinstance(values, RaggedTensor) else convert(values)
        self._splits = np.asarray(splits, np.int64)
        count = len(self.values) if isinstance(self.values, RaggedTensor) else self.values.aval[0][0]
        if self._splits[0] != 0 or self._splits[-1] != count or np.any(np.diff(self._splits) < 0):
            raise InvalidArgumentError(None, None, f"row_splits {self._splits} are not those of {count} values")

    @classmethod
    def from_row_splits(cls, values: Any, row_splits: Any, name: Any = None, validate: bool = True) -> RaggedTensor:
        """By where each row begins, and where the last ends."""
        del name, validate
        return cls(values, _numbers(row_splits))

    @classmethod
    def from_row_lengths(cls, values: Any, row_lengths: Any, name: Any = None, validate: bool = True) -> RaggedTensor:
        """By how long each row is."""
        del name, validate
        return cls(values, np.concatenate([[0], np.cumsum(_numbers(row_lengths))]))

    @classmethod
    def from_row_starts(cls, values: Any, row_starts: Any, name: Any = None, validate: bool = True) -> RaggedTensor:
        """By where each row begins."""
        del name, validate
        inner = values if isinstance(values, RaggedTensor) else convert(values)
        return cls(inner, np.concatenate([_numbers(row_starts), [len(inner)]]))

    @classmethod
    def from_value_rowids(
        cls, values: Any, value_rowids: Any, nrows: Any = None, name: Any = None, validate: bool = True
    ) -> RaggedTensor:
        """By the row of each element."""
        del name, validate
        rows = _numbers(value_rowids)
        count = int(rows.max(initial=-1)) + 1 if nrows is None else int(convert(nrows))
        return cls.from_row_lengths(values, np.bincount(rows, minlength=count))

    @classmethod
    def from_tensor(
        cls, tensor: Any, lengths: Any = None, padding: Any = None, ragged_rank: int = 1, name: Any = None
    ) -> RaggedTensor:
        """The rows of a tensor, without what fills them up."""
        del ragged_rank, name
        whole = convert(tensor)
        height, width = whole.aval[0][:2]
        if padding is not None:
            is_fill = np.asarray(whole.numpy()) == np.asarray(convert(padding, whole.dtype).numpy())
            is_fill = is_fill.reshape(height, width, -1).all(-1)
            counts = np.array([width - np.argmax(np.r_[~row[::-1], True]) for row in is_fill])
        else:
            counts = np.full(height, width) if lengths is None else _numbers(lengths)
        inside = np.flatnonzero((np.arange(width) < counts[:, None]).reshape(-1))
        flat = known("tf.reshape")(whole, [height * width, *whole.aval[0][2:]])
        return cls.from_row_lengths(known("tf.gather")(flat, inside), counts)

    @classmethod
    def from_sparse(cls, st_input: SparseTensor, name: Any = None, row_splits_dtype: Any = None) -> RaggedTensor:
        """Of a sparse matrix whose rows have their elements in front."""
        del name, row_splits_dtype
        rows = np.asarray(st_input.indices.numpy())[:, 0]
        return cls.from_value_rowids(st_input.values, rows, int(np.asarray(st_input.dense_shape.numpy())[0]))

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        found: DType = self.values.dtype
        return found

    @property
    def flat_values(self) -> Tensor:
        """All elements."""
        found: Tensor = self.values.flat_values if isinstance(self.values, RaggedTensor) else self.values
        return found

    @property
    def ragged_rank(self) -> int:
        """How many axes have different lengths."""
        return 1 + (self.values.ragged_rank if isinstance(self.values, RaggedTensor) else 0)

    @property
    def shape(self) -> TensorShape:
        """The shape; a size that differs is `None`."""
        return TensorShape([len(self), None, *self.values.shape.as_list()[1:]])

    @property
    def row_splits(self) -> Tensor:
        """Where each row begins, and where the last ends."""
        return Tensor(self._splits)

    def get_shape(self) -> TensorShape:
        """The shape."""
        return self.shape

    def nrows(self, out_type: Any = None, name: Any = None) -> Tensor:
        """How many rows."""
        del name
        return Tensor(np.asarray(len(self), as_dtype(out_type or "int64").numpy))

    def row_lengths(self, axis: int = 1, name: Any = None) -> Tensor:
        """How long each row is."""
        del axis, name
        return Tensor(np.diff(self._splits))

    def row_starts(self, name: Any = None) -> Tensor:
        """Where each row begins."""
        del name
        return Tensor(self._splits[:-1])

    def value_rowids(self, name: Any = None) -> Tensor:
        """The row of each element."""
        del name
        return Tensor(np.repeat(np.arange(len(self)), np.diff(self._splits)))

    def bounding_shape(self, axis: Any = None, name: Any = None, out_type: Any = None) -> Tensor:
        """The shape of `to_tensor`."""
        del name
        sizes = np.asarray(self.to_tensor().aval[0], as_dtype(out_type or "int64").numpy)
        return Tensor(sizes if axis is None else sizes[axis])

    def with_values(self, new_values: Any) -> RaggedTensor:
        """Rows of the same lengths with other elements."""
        return RaggedTensor(new_values, self._splits)

    def with_flat_values(self, new_values: Any) -> RaggedTensor:
        """Rows of the same lengths, on all levels, with other elements."""
        inner = self.values
        return self.with_values(inner.with_flat_values(new_values) if isinstance(inner, RaggedTensor) else new_values)

    def to_tensor(self, default_value: Any = None, name: Any = None, shape: Any = None) -> Tensor:
        """The rows, filled up to one length, or cut and filled up to a shape.

        Raises:
          InvalidArgumentError: the shape has another number of axes.
        """
        del name
        lengths = np.diff(self._splits)
        width = int(lengths.max(initial=0))
        whole_shape = TensorShape(None if shape is None else [shape] if isinstance(shape, int) else shape)
        sizes = list(whole_shape.sizes or [None] * (self.shape.rank or 0))
        if len(sizes) != self.shape.rank:
            raise InvalidArgumentError(
                None, None, f"shape={sizes} needs {self.shape.rank} sizes, as the tensor has axes"
            )
        inner = self.values
        if isinstance(inner, RaggedTensor):
            inner = inner.to_tensor(default_value, shape=[None, *sizes[2:]])
        rows = np.repeat(np.arange(len(self)), lengths)
        columns = np.arange(len(rows)) - np.repeat(self._splits[:-1], lengths)
        width, height = (width if sizes[1] is None else sizes[1]), (len(self) if sizes[0] is None else sizes[0])
        kept = (columns < width) & (rows < height)
        if default_value is None:
            default_value = b"" if inner.dtype.name == "string" else 0
        fill = convert(default_value, None if isinstance(default_value, Tensor) else inner.dtype)
        if inner.dtype.name == "string":
            whole = np.full([height, width], fill.numpy(), object)
            whole[rows[kept], columns[kept]] = np.asarray(inner.numpy())[kept]
            return Tensor(whole)

        def call(values: Any, rest: Any) -> Any:
            import jax.numpy as jnp

            whole = jnp.full((height, width, *values.shape[1:]), rest, values.dtype)
            return (whole.at[rows[kept], columns[kept]].set(values[kept]),)

        return compute(("to_tensor", self._splits.tobytes(), height, width), call, [inner, fill])[0]

    def to_sparse(self, name: Any = None) -> SparseTensor:
        """The elements with their places."""
        del name
        lengths = np.diff(self._splits)
        rows = np.repeat(np.arange(len(self)), lengths)
        columns = np.arange(len(rows)) - np.repeat(self._splits[:-1], lengths)
        return SparseTensor(np.stack([rows, columns], 1), self.values, [len(self), int(lengths.max(initial=0))])

    def to_list(self) -> list[Any]:
        """The rows as lists."""
        return [row.to_list() if isinstance(row, RaggedTensor) else row.numpy().tolist() for row in self]

    def numpy(self) -> Any:
        """The rows as NumPy's: an array where all have one length."""
        rows = [row.numpy() for row in self]
        if len({np.shape(row) for row in rows}) <= 1:
            return np.asarray(rows)
        found = np.empty(len(rows), object)
        found[:] = rows
        return found

    def __len__(self) -> int:
        return len(self._splits) - 1

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            rows = np.arange(len(self))[key]
            parts = [np.arange(*self._splits[[row, row + 1]]) for row in rows]
            if isinstance(self.values, RaggedTensor):
                return stack([self[int(row)] for row in rows])
            places = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            return RaggedTensor.from_row_lengths(known("tf.gather")(self.values, places), [len(one) for one in parts])
        if isinstance(key, tuple):
            row, *rest = key
            found = self[row]
            if isinstance(row, slice):
                return RaggedTensor.from_row_lengths(*_joined([one[tuple(rest)] for one in found]))
            return found[tuple(rest) if len(rest) > 1 else rest[0]]
        row = range(len(self))[int(key)]
        return self.values[int(self._splits[row]) : int(self._splits[row + 1])]

    def __repr__(self) -> str:
        return f"<tf.RaggedTensor {self.to_list()}>"


class RaggedTensorSpec(TypeSpec):
    """The shape and dtype of rows of different lengths."""

    def __init__(
        self, shape: Any = None, dtype: Any = "float32", ragged_rank: int | None = None, row_splits_dtype: Any = "int64"
    ) -> None:
        self.shape = TensorShape(shape)
        self.dtype = as_dtype(dtype)
        self.ragged_rank = ragged_rank
        self.row_splits_dtype = as_dtype(row_splits_dtype)

    def __repr__(self) -> str:
        return f"RaggedTensorSpec({self.shape}, {self.dtype!r}, {self.ragged_rank}, {self.row_splits_dtype!r})"


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(TENSORS.known(value, "rows") if TENSORS.is_tensor(value) else value).astype(np.int64)


def _joined(rows: Sequence[Any]) -> tuple[Any, list[int]]:
    return known("tf.concat")(list(rows), 0), [row.aval[0][0] for row in rows]


def constant(
    pylist: Any, dtype: Any = None, ragged_rank: Any = None, inner_shape: Any = None, name: Any = None,
    row_splits_dtype: Any = None,
) -> Any:  # fmt: skip
    """Rows of lists; a tensor, if there are no lists in a list."""
    del ragged_rank, inner_shape, name, row_splits_dtype
    kind = None if dtype is None else as_dtype(dtype)
    if not isinstance(pylist, list | tuple) or not any(isinstance(one, list | tuple | np.ndarray) for one in pylist):
        return Tensor(array_of(pylist, kind))
    rows = [list(one) for one in pylist]
    flat = [item for row in rows for item in row]
    if any(isinstance(one, list | tuple) for one in flat):
        return RaggedTensor.from_row_lengths(constant(flat, kind), [len(row) for row in rows])
    return RaggedTensor.from_row_lengths(Tensor(array_of(flat, kind or (None if flat else as_dtype("float32")))),
                                         [len(row) for row in rows])  # fmt: skip


def stack(values: Sequence[Any], axis: int = 0, name: Any = None) -> RaggedTensor:
    """Tensors of different lengths as rows."""
    del axis, name
    if isinstance(values[0], RaggedTensor):
        inner = RaggedTensor.from_row_lengths(
            known("tf.concat")([one.values for one in values], 0),
            np.concatenate([np.asarray(one.row_lengths().numpy()) for one in values]),
        )
        return RaggedTensor.from_row_lengths(inner, [len(one) for one in values])
    return RaggedTensor.from_row_lengths(*_joined([convert(one) for one in values]))


def range_(starts: Any, limits: Any = None, deltas: Any = 1, dtype: Any = None, name: Any = None) -> RaggedTensor:
    """Rows of numbers that follow each other."""
    del name
    first, last = (np.zeros_like(_numbers(starts)), starts) if limits is None else (starts, limits)
    begins, ends, steps = np.broadcast_arrays(_numbers(first), _numbers(last), _numbers(deltas))
    rows = [
        np.arange(*one) for one in zip(np.atleast_1d(begins), np.atleast_1d(ends), np.atleast_1d(steps), strict=True)
    ]
    kind = as_dtype(dtype or convert(starts).dtype).numpy
    return RaggedTensor.from_row_lengths(np.concatenate(rows).astype(kind), [len(row) for row in rows])


def map_flat_values(op: Any, *args: Any, **kwargs: Any) -> RaggedTensor:
    """What a function gives for the elements."""
    first = next(one for one in (*args, *kwargs.values()) if isinstance(one, RaggedTensor))
    parts = [one.flat_values if isinstance(one, RaggedTensor) else one for one in args]
    named = {name: one.flat_values if isinstance(one, RaggedTensor) else one for name, one in kwargs.items()}
    return first.with_flat_values(op(*parts, **named))


def boolean_mask(data: Any, mask: Any, name: Any = None) -> RaggedTensor:
    """The elements of each row for which a mask is true."""
    del name
    whole = data if isinstance(data, RaggedTensor) else RaggedTensor.from_tensor(data)
    chosen = mask.flat_values if isinstance(mask, RaggedTensor) else convert(mask)
    kept = np.asarray(chosen.numpy()).reshape(-1)
    rows = np.asarray(whole.value_rowids().numpy())[kept]
    values = known("tf.gather")(whole.values, np.flatnonzero(kept))
    return RaggedTensor.from_value_rowids(values, rows, len(whole))
