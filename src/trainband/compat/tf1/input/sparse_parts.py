"""Operations that split, combine and store sparse tensors. Python computes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import array, math
from trainband.compat.ops.dtypes import as_dtype, int64, string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.hashes import CROSSING_KEY, fingerprint, fingerprint_of_both
from trainband.compat.tf1.input.sparse import Parts, dense, sparse, sparse_reduce_max, sparse_reduce_sum
from trainband.compat.tf1.operations.operators import with_dense
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.scripts.values import TensorProto, make_ndarray, make_tensor_proto


def sparse_split(
    keyword_required: Any = None,
    sp_input: Any = None,
    num_split: int | None = None,
    axis: Any = None,
    name: str | None = None,
    split_dim: Any = None,
) -> list[SparseTensor]:
    """Split along an axis; the first parts are one longer if it cannot be divided evenly.

    Raises:
      ValueError: an argument is missing.
    """
    along = split_dim if axis is None else axis
    for what, value in (("sp_input", sp_input), ("num_split", num_split), ("axis", along)):
        if keyword_required is not None or value is None:
            raise ValueError(f"Keyword arguments are required for this function, and {what} must be given.")
    given, count = SparseTensor.from_value(sp_input), int(num_split or 0)
    static = given.shape.sizes
    rank = None if static is None else len(static)

    def split(_: Any, indices: Any, values: Any, shape: Any, chosen: Any) -> list[Any]:
        place = int(chosen.reshape(()))
        if not -len(shape) <= place < len(shape):
            raise InvalidArgumentError(None, None, f"axis {place} is not in [{-len(shape)}, {len(shape)})")
        place %= len(shape)
        if not 1 <= count <= shape[place]:
            raise InvalidArgumentError(
                None, None, f"num_split should be in the interval [1, {shape[place]}], but got {count}"
            )
        each, more = divmod(int(shape[place]), count)
        found: list[Any] = []
        start = 0
        for number in range(count):
            end = start + each + (number < more)
            kept = (indices[:, place] >= start) & (indices[:, place] < end)
            moved, sizes = indices[kept].copy(), shape.copy()
            moved[:, place] -= start
            sizes[place] = end - start
            found += [moved, values[kept], sizes]
            start = end
        return found

    op = record_source(
        "SparseSplit",
        split,
        [*given.parts, convert(along)],
        dtypes=[int64, given.dtype, int64] * count,
        shapes=[[None, rank], [None], [rank]] * count,
        name=name,
    )
    return [SparseTensor(*op.outputs[i : i + 3]) for i in range(0, 3 * count, 3)]


def _elementwise(type_: str, choose: Callable[[Any, Any], Any]) -> Callable[..., SparseTensor]:
    def record_it(sp_a: Any, sp_b: Any, name: str | None = None) -> SparseTensor:
        left, right = SparseTensor.from_value(sp_a), SparseTensor.from_value(sp_b)

        def compute(i: Any, v: Any, s: Any, j: Any, w: Any, t: Any) -> Parts:
            if len(s) != len(t):
                raise InvalidArgumentError(None, None, f"Operands do not have the same ranks: {len(s)} and {len(t)}")
            if s.tolist() != t.tolist():
                raise InvalidArgumentError(None, None, f"Operands' shapes do not match: {s.tolist()} and {t.tolist()}")
            places, number = np.unique(np.concatenate([i, j]), axis=0, return_inverse=True)
            first, second = np.zeros((2, len(places)), v.dtype)
            number = number.reshape(-1)
            first[number[: len(i)]], second[number[len(i) :]] = v, w
            return places, choose(first, second), s

        return sparse(type_, compute, [*left.parts, *right.parts], left.dtype, left.shape, name)

    record_it.__doc__ = f"Element by element {choose.__name__} of two sparse tensors of one shape."
    return record_it


sparse_maximum = _elementwise("SparseSparseMaximum", np.maximum)
sparse_minimum = _elementwise("SparseSparseMinimum", np.minimum)


def _to_sparse(type_: str, reduce: Callable[..., Tensor]) -> Callable[..., SparseTensor]:
    def record_it(
        sp_input: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        reduction_axes: Any = None,
        keep_dims: bool | None = None,
    ) -> SparseTensor:
        given = SparseTensor.from_value(sp_input)
        total = reduce(given, axis, keepdims, reduction_axes, keep_dims)
        ones = recorded(array.ones_like)(given.values, int64)
        counted = SparseTensor(given.indices, ones, given.dense_shape)
        there = sparse_reduce_sum(counted, axis, keepdims, reduction_axes, keep_dims)

        def keep(numbers: Any, counts: Any) -> Parts:
            places = np.argwhere(counts > 0)
            return places, numbers[counts > 0].reshape(-1), np.array(numbers.shape, np.int64)

        return sparse(type_, keep, [total, there], given.dtype, total.shape)

    record_it.__doc__ = f"TensorFlow's {type_}: what is reduced along axes, as a sparse tensor."
    return record_it


sparse_reduce_sum_sparse = _to_sparse("SparseReduceSumSparse", sparse_reduce_sum)
sparse_reduce_max_sparse = _to_sparse("SparseReduceMaxSparse", sparse_reduce_max)


# --- stored as text


def _stored(array: Any) -> bytes:
    return bytes(make_tensor_proto(array).SerializeToString())


def _read(text: bytes, what: str, dtype: Any = None) -> Any:
    proto = TensorProto()
    try:
        proto.ParseFromString(text)
        array = make_ndarray(proto)
    except Exception as exc:
        raise InvalidArgumentError(None, None, f"Could not parse {what} as TensorProto: {text[:64]!r}") from exc
    if dtype is not None and as_dtype(array.dtype) != dtype:
        raise InvalidArgumentError(
            None,
            None,
            f"Type mismatch between parsed tensor ({as_dtype(array.dtype).name}) and dtype ({dtype.name}); "
            f"Requested SparseTensor of type {dtype.name} but SparseTensor[0].values.dtype() == "
            f"{as_dtype(array.dtype).name}",
        )
    return array


def serialize_tensor(tensor: Any, name: str | None = None) -> Tensor:
    """An array as the text of a `TensorProto`."""
    given = convert(tensor)

    def store(array: Any) -> Any:
        return np.array(_stored(array), object)

    return dense("SerializeTensor", store, [given], string, [], name)


def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Tensor:
    """The array that the text of a `TensorProto` holds.

    Raises:
      InvalidArgumentError (in a run): it does not, or one of another dtype.
    """
    kind = as_dtype(out_type)
    text = convert(serialized, string)

    def read(one: Any) -> Any:
        return _read(one.item(), "serialized", kind)

    return dense("ParseTensor", read, [text], kind, None, name)


def serialize_sparse(sp_input: Any, name: str | None = None, out_type: Any = string) -> Tensor:
    """A sparse tensor as three texts: of its places, elements and shape."""
    del out_type
    given = SparseTensor.from_value(sp_input)

    def store(*parts: Any) -> Any:
        return np.array([_stored(one) for one in parts], object)

    return dense("SerializeSparse", store, given.parts, string, [3], name)


def serialize_many_sparse(sp_input: Any, name: str | None = None, out_type: Any = string) -> Tensor:
    """Each row of a sparse tensor as three texts."""
    del out_type
    given = SparseTensor.from_value(sp_input)

    def store(indices: Any, values: Any, shape: Any) -> Any:
        found = np.empty((int(shape[0]), 3), object)
        for row in range(len(found)):
            mine = indices[:, 0] == row
            found[row] = [_stored(one) for one in (indices[mine, 1:], values[mine], shape[1:])]
        return found

    rows = None if given.shape.sizes is None else given.shape.sizes[0]
    return dense("SerializeManySparse", store, given.parts, string, [rows, 3], name)


def _joined(texts: Any, dtype: Any) -> Parts:
    """The sparse tensor whose parts are given for each place of the first axes."""
    if texts.ndim < 1 or texts.shape[-1] != 3:
        raise InvalidArgumentError(
            None, None, f"Serialized sparse should have 3 as the last dimension but got {texts.shape}"
        )
    parts: list[tuple[Any, ...]] = []
    for place in np.ndindex(*texts.shape[:-1]):
        indices, values, shape = (_read(text, "serialized_sparse") for text in texts[place])
        if values.dtype != dtype.numpy:
            raise InvalidArgumentError(
                None,
                None,
                f"Requested SparseTensor of type {dtype.name} but SparseTensor[{len(parts)}].values.dtype() == "
                f"{as_dtype(values.dtype).name}",
            )
        parts.append((place, indices, values, shape))
    if any(len(one[3]) != len(parts[0][3]) for one in parts):
        raise InvalidArgumentError(
            None,
            None,
            f"Inconsistent shape across SparseTensors: rank prior to SparseTensor[1] was: {len(parts[0][3])} but rank "
            "of another is different",
        )
    whole = np.array([*texts.shape[:-1], *np.max([one[3] for one in parts], axis=0)], np.int64)
    places = [np.column_stack([np.tile(place, (len(i), 1)), i]) for place, i, _, _ in parts]
    return np.concatenate(places).astype(np.int64), np.concatenate([one[2] for one in parts]), whole


def deserialize_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """The sparse tensor that such texts stand for; their first axes become its first."""
    kind, texts = as_dtype(dtype), convert(serialized_sparse, string)
    sizes = texts.shape.sizes
    outer = None if sizes is None else len(sizes) - 1
    static = None if rank is None or outer is None else [None] * (outer + rank)
    return sparse("DeserializeSparse", lambda some: _joined(some, kind), [texts], kind, static, name)


def deserialize_many_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """The sparse tensor whose rows such texts stand for."""
    return deserialize_sparse(serialized_sparse, dtype, rank, name)


def sparse_dense_cwise_add(sp_t: Any, dense_t: Any) -> SparseTensor:
    """The elements of a sparse tensor, and what a dense one has at their places, added."""
    return with_dense(math.add, SparseTensor.from_value(sp_t), dense_t)


# --- crossed


def _columns(inputs: Sequence[Any]) -> tuple[list[Tensor], list[bool]]:
    """The parts of sparse and dense columns of features, and which are sparse."""
    tensors: list[Tensor] = []
    kinds: list[bool] = []
    for one in inputs:
        is_sparse = isinstance(one, SparseTensor) or (isinstance(one, tuple) and hasattr(one, "dense_shape"))
        kinds.append(is_sparse)
        tensors += SparseTensor.from_value(one).parts if is_sparse else [convert(one)]
    return tensors, kinds


def _rows(arrays: Sequence[Any], kinds: Sequence[bool]) -> list[list[list[Any]]]:
    """Of each column the features of each row."""
    rest = iter(arrays)
    found = []
    for is_sparse in kinds:
        if not is_sparse:
            found.append([row.tolist() for row in next(rest)])
            continue
        indices, values, shape = next(rest), next(rest), next(rest)
        rows: list[list[Any]] = [[] for _ in range(int(shape[0]))]
        for place, value in zip(indices[:, 0].tolist(), values.tolist(), strict=True):
            rows[place].append(value)
        found.append(rows)
    return found


def sparse_cross(inputs: Sequence[Any], name: str | None = None) -> SparseTensor:
    """All combinations of the features in each row, joined as text."""
    tensors, kinds = _columns(inputs)

    def cross(*arrays: Any) -> Parts:
        return _crossed(_rows(arrays, kinds), lambda some: b"_X_".join(map(_as_text, some)), object)

    return sparse("SparseCross", cross, tensors, string, [None, None], name)


def sparse_cross_hashed(
    inputs: Sequence[Any], num_buckets: int = 0, hash_key: int | None = None, name: str | None = None
) -> SparseTensor:
    """The buckets of all combinations of the features in each row."""
    tensors, kinds = _columns(inputs)

    def bucket(some: Sequence[Any]) -> int:
        total = CROSSING_KEY if hash_key is None else hash_key
        for value in some:
            number = fingerprint(value) if isinstance(value, bytes) else value
            total = fingerprint_of_both(total, number & ((1 << 64) - 1))
        return total % (num_buckets or (1 << 63) - 1)

    def cross(*arrays: Any) -> Parts:
        return _crossed(_rows(arrays, kinds), bucket, np.int64)

    return sparse("SparseCross", cross, tensors, int64, [None, None], name)


def _crossed(columns: Sequence[Any], join: Callable[[Sequence[Any]], Any], kind: Any) -> Parts:
    crossed = [[join(some) for some in itertools.product(*row)] for row in zip(*columns, strict=True)]
    places = [(i, j) for i, row in enumerate(crossed) for j in range(len(row))]
    values = np.empty(len(places), kind)
    values[:] = [one for row in crossed for one in row]
    sizes = [len(crossed), max(map(len, crossed), default=0)]
    return np.array(places, np.int64).reshape(-1, 2), values, np.array(sizes, np.int64)


def _as_text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
