"""Operations on sparse tensors. Python computes them: how many elements there are changes from run to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import math
from trainband.compat.ops.dtypes import DType, as_dtype, bool_, int64
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.operations.array import placeholder
from trainband.compat.tf1.operations.recorder import recorded

Parts = tuple[Any, Any, Any]
"""Places, elements, and shape of a sparse tensor, as arrays."""


def dense(
    type_: str, compute: Callable[..., Any], inputs: Sequence[Tensor], dtype: DType, shape: Any, name: str | None = None
) -> Tensor:
    """Record an operation of arrays with one result, which Python computes."""
    return record_source(
        type_, lambda _, *arrays: [compute(*arrays)], inputs, dtypes=[dtype], shapes=[shape], name=name
    ).outputs[0]


def sparse(
    type_: str,
    compute: Callable[..., Parts],
    inputs: Sequence[Tensor],
    dtype: DType,
    shape: Any,
    name: str | None = None,
) -> SparseTensor:
    """Record an operation whose result is a sparse tensor, of whose shape this is known."""
    static = TensorShape(shape)
    rank = static.ndims
    op = record_source(
        type_,
        lambda _, *arrays: compute(*arrays),
        inputs,
        dtypes=[int64, dtype, int64],
        shapes=[[None, rank], [None], [rank]],
        name=name,
    )
    sizes = np.array(static.as_list(), np.int64) if static.is_fully_defined() else op.outputs[2]
    return SparseTensor(op.outputs[0], op.outputs[1], sizes)


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A sparse tensor that every run must feed, as a `SparseTensorValue` or a tuple of its parts."""
    known = None if shape is None else TensorShape(shape)
    rank = None if known is None else known.ndims
    base = name or "Placeholder"
    values = placeholder(dtype, [None], name=f"{base}/values")
    indices = placeholder(int64, [None, rank], name=f"{base}/indices")
    sizes: Any = placeholder(int64, [rank], name=f"{base}/shape")
    if known is not None and known.is_fully_defined():
        sizes = np.array(known.as_list(), np.int64)
    return SparseTensor(indices, values, sizes)


def in_order(indices: Any, values: Any, shape: Any) -> Parts:
    """The elements by their places."""
    order = np.lexsort(indices.T[::-1]) if indices.shape[1] else np.arange(len(indices))
    return indices[order], values[order], shape


def _rank(tensor: SparseTensor) -> int | None:
    return tensor.shape.ndims


def _unknown(tensor: SparseTensor) -> TensorShape:
    """A shape of the same rank."""
    return TensorShape(None if tensor.shape.ndims is None else [None] * tensor.shape.ndims)


def sparse_reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The elements in the order of their places."""
    given = SparseTensor.from_value(sp_input)
    return sparse("SparseReorder", in_order, given.parts, given.dtype, given.shape, name)


def whole(indices: Any, values: Any, shape: Any, default: Any = 0) -> Any:
    """A sparse array with all its elements.

    Raises:
      InvalidArgumentError: a place is out of range.
    """
    if len(indices) and ((indices < 0).any() or (indices >= shape).any()):
        bad = indices[((indices < 0) | (indices >= shape)).any(1)][0]
        raise InvalidArgumentError(
            None, None, f"index {bad.tolist()} is out of bounds: need 0 <= index < {shape.tolist()}"
        )
    found = np.full(tuple(shape), default, np.asarray(values).dtype)
    found[tuple(indices.T)] = values
    return found


def sparse_tensor_to_dense(
    sp_input: Any,
    default_value: Any = None,
    validate_indices: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> Tensor:
    """All elements, with a default where there are none."""
    given = SparseTensor.from_value(sp_input)
    empty = default_value if default_value is not None else (b"" if given.dtype.numpy.kind == "O" else 0)
    inputs = [*given.parts, convert(empty, given.dtype)]
    return dense("SparseToDense", lambda i, v, s, d: whole(i, v, s, d.item()), inputs, given.dtype, given.shape, name)


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """Values at these places, and a default elsewhere.

    Raises:
      InvalidArgumentError (in a run): a place is out of range, or listed twice or out of order.
    """
    values = convert(sparse_values)
    shape = convert(output_shape)

    def fill(indices: Any, sizes: Any, elements: Any, default: Any) -> Any:
        places = indices.reshape(-1, 1) if indices.ndim < 2 else indices
        if validate_indices and len(places) > 1:
            ordered = np.ravel_multi_index(tuple(np.clip(places, 0, sizes - 1).T), tuple(sizes))
            bad = np.flatnonzero(np.diff(ordered) <= 0)
            if len(bad) and ((places >= 0).all() and (places < sizes).all()):
                what = "is repeated" if ordered[bad[0]] == ordered[bad[0] + 1] else "is out of order"
                raise InvalidArgumentError(None, None, f"indices[{bad[0] + 1}] = {places[bad[0] + 1].tolist()} {what}")
        return whole(places, elements, np.asarray(sizes).reshape(-1), default.item())

    known = known_value(shape)
    static = TensorShape(known.reshape(-1).tolist()) if known is not None else TensorShape(None)
    if known is None and shape.shape.ndims == 1:
        static = TensorShape([None] * (shape.shape.as_list()[0] or 0)) if shape.shape.as_list()[0] else static
    default = convert(default_value, values.dtype)
    return dense("SparseToDense", fill, [convert(sparse_indices), shape, values, default], values.dtype, static, name)


def sparse_to_indicator(sp_input: Any, vocab_size: Any, name: str | None = None) -> Tensor:
    """For each row which numbers are among its elements: [..., vocab_size], bool."""
    given = SparseTensor.from_value(sp_input)

    def mark(indices: Any, values: Any, shape: Any) -> Any:
        found = np.zeros([*shape[:-1], vocab_size], bool)
        found[(*indices[:, :-1].T, values)] = True
        return found

    sizes = given.shape.sizes
    static = None if sizes is None else [*sizes[:-1], vocab_size]
    return dense("SparseToIndicator", mark, given.parts, bool_, static, name)


def sparse_concat(
    axis: int,
    sp_inputs: Sequence[Any],
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: Any = None,
    expand_nonconcat_dims: bool | None = None,
) -> SparseTensor:
    """Join sparse tensors along an axis."""
    given = [SparseTensor.from_value(one) for one in sp_inputs]
    if len(given) == 1:
        return given[0]
    along = axis if concat_dim is None else concat_dim
    expand = expand_nonconcat_dim if expand_nonconcat_dims is None else expand_nonconcat_dims

    def join(*arrays: Any) -> Parts:
        parts = [arrays[i : i + 3] for i in range(0, len(arrays), 3)]
        place = along % len(parts[0][2])
        shapes = np.array([one[2] for one in parts])
        rest = np.delete(shapes, place, 1)
        if not expand and (rest != rest[0]).any():
            raise InvalidArgumentError(
                None, None, f"Input shapes must match outside of axis {along}: {shapes.tolist()}"
            )
        starts = np.concatenate([[0], np.cumsum(shapes[:, place])])
        moved = []
        for one, start in zip(parts, starts[:-1], strict=True):
            indices = one[0].copy()
            indices[:, place] += start
            moved.append(indices)
        shape = shapes.max(0)
        shape[place] = starts[-1]
        return in_order(np.concatenate(moved), np.concatenate([one[1] for one in parts]), shape)

    inputs = [part for one in given for part in one.parts]
    return sparse("SparseConcat", join, inputs, given[0].dtype, _joined([one.shape for one in given], along), name)


def _joined(shapes: Sequence[TensorShape], axis: int) -> TensorShape:
    """The shape of several tensors that are joined, if all their shapes are known."""
    if not all(shape.is_fully_defined() for shape in shapes):
        return TensorShape(None if shapes[0].ndims is None else [None] * shapes[0].ndims)
    sizes = np.array([shape.as_list() for shape in shapes])
    found = sizes.max(0)
    found[axis] = sizes[:, axis].sum()
    return TensorShape(found.tolist())


def _reduced(type_: str, function: Callable[..., Any], empty: Callable[[Any], Any]) -> Callable[..., Any]:
    def reduce(
        sp_input: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        reduction_axes: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        given = SparseTensor.from_value(sp_input)
        chosen = axis if reduction_axes is None else reduction_axes
        kept = bool(keepdims if keep_dims is None else keep_dims)
        rank = _rank(given)

        def compute(indices: Any, values: Any, shape: Any) -> Any:
            for one in () if chosen is None else np.ravel(chosen):
                if not -len(shape) <= one < len(shape):
                    raise InvalidArgumentError(
                        None,
                        None,
                        f"Invalid reduction dimension {one}, for input with {len(shape)} dimensions.",
                    )
            axes = tuple(range(len(shape))) if chosen is None else tuple(np.ravel(chosen) % len(shape))
            left = [i for i in range(len(shape)) if i not in axes]
            sizes = [int(shape[i]) for i in left]
            places = np.ravel_multi_index(tuple(indices[:, left].T), sizes) if left else np.zeros(len(values), int)
            flat = np.full(int(np.prod(sizes)), empty(values.dtype), values.dtype)
            function.at(flat, places, values)  # type: ignore[attr-defined]
            flat[np.bincount(places, minlength=len(flat)) == 0] = 0
            found = flat.reshape(sizes)
            return found.reshape([1 if i in axes else n for i, n in enumerate(shape)]) if kept else found

        static = None
        if rank is not None:
            axes = set(range(rank)) if chosen is None else {int(one) % rank for one in np.ravel(chosen)}
            sizes = given.shape.as_list()
            static = [1 if i in axes else n for i, n in enumerate(sizes) if kept or i not in axes]
        return dense(type_, compute, given.parts, given.dtype, static)

    return reduce


sparse_reduce_sum = _reduced("SparseReduceSum", np.add, lambda _: 0)
"""Sums along axes, as a dense tensor."""
sparse_reduce_max = _reduced(
    "SparseReduceMax", np.maximum, lambda kind: -np.inf if kind.kind == "f" else np.iinfo(kind).min
)
"""The largest elements along axes, as a dense tensor; zero if there are none."""


def sparse_retain(sp_input: Any, to_retain: Any) -> SparseTensor:
    """Only those elements for which `to_retain` is true."""
    given = SparseTensor.from_value(sp_input)
    kept = convert(to_retain, bool_)
    given.values.shape[:1].assert_is_compatible_with(kept.shape)
    inputs = [*given.parts, kept]
    return sparse("SparseRetain", lambda i, v, s, keep: (i[keep], v[keep], s), inputs, given.dtype, given.shape)


def sparse_slice(sp_input: Any, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """A part with this start and size."""
    given = SparseTensor.from_value(sp_input)

    def cut(indices: Any, values: Any, shape: Any, first: Any, sizes: Any) -> Parts:
        end = np.minimum(first + sizes, shape)
        kept = ((indices >= first) & (indices < end)).all(1)
        return indices[kept] - first, values[kept], np.maximum(end - first, 0)

    inputs = [*given.parts, convert(start, int64), convert(size, int64)]
    return sparse("SparseSlice", cut, inputs, given.dtype, _unknown(given), name)


def sparse_softmax(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The softmax over the stored elements of each row."""
    given = SparseTensor.from_value(sp_input)

    def compute(indices: Any, values: Any, shape: Any) -> Parts:
        _, row = np.unique(indices[:, :-1], axis=0, return_inverse=True)
        row = row.reshape(-1)
        most = np.full(row.max(initial=-1) + 1, -np.inf, values.dtype)
        np.maximum.at(most, row, values)
        powers = np.exp(values - most[row])
        return indices, powers / np.bincount(row, powers)[row].astype(values.dtype) if len(row) else powers, shape

    return sparse("SparseSoftmax", compute, given.parts, given.dtype, given.shape, name)


def sparse_fill_empty_rows(sp_input: Any, default_value: Any, name: str | None = None) -> tuple[SparseTensor, Tensor]:
    """Rows without elements get a default at their first place: (the tensor, which rows were empty)."""
    given = SparseTensor.from_value(sp_input)

    def fill(_: Any, indices: Any, values: Any, shape: Any, default: Any) -> list[Any]:
        empty = np.ones(shape[0], bool)
        empty[indices[:, 0]] = False
        rows = np.flatnonzero(empty)
        more = np.zeros([len(rows), indices.shape[1]], np.int64)
        more[:, 0] = rows
        filler = np.empty(len(rows), values.dtype)
        filler[:] = default.item()
        return [*in_order(np.concatenate([indices, more]), np.concatenate([values, filler]), shape), empty]

    rank = _rank(given)
    rows = given.shape.as_list()[:1] if rank else [None]
    op = record_source(
        "SparseFillEmptyRows",
        fill,
        [*given.parts, convert(default_value, given.dtype)],
        dtypes=[int64, given.dtype, int64, bool_],
        shapes=[[None, rank], [None], [rank], rows],
        name=name,
    )
    return SparseTensor(op.outputs[0], op.outputs[1], given.dense_shape), op.outputs[3]


def sparse_reset_shape(sp_input: Any, new_shape: Any = None) -> SparseTensor:
    """The same elements in a larger shape, or in the smallest that holds them."""
    given = SparseTensor.from_value(sp_input)
    inputs = [*given.parts, *([] if new_shape is None else [recorded(math.cast)(convert(new_shape), int64)])]

    def reset(indices: Any, values: Any, shape: Any, *new: Any) -> Parts:
        sizes = new[0] if new else (indices.max(0) + 1 if len(indices) else np.zeros(len(shape), np.int64))
        if new and (len(sizes) != len(shape) or (sizes < shape).any()):
            what = "x == y" if len(sizes) != len(shape) else "x <= y"
            raise InvalidArgumentError(
                None,
                None,
                f"The new shape {sizes.tolist()} is smaller than {shape.tolist()}: Condition {what} did not hold "
                "element-wise",
            )
        return indices, values, sizes

    known = None if new_shape is None else known_value(inputs[-1])
    sizes_now = given.shape.sizes
    if new_shape is not None and sizes_now is not None and inputs[-1].shape.is_fully_defined():
        if [len(sizes_now)] != inputs[-1].shape.as_list():
            raise ValueError(f"The new shape {inputs[-1]} must have {len(sizes_now)} sizes, as {given.shape} has.")
        if known is not None and any(
            old is not None and new < old for old, new in zip(sizes_now, known.tolist(), strict=True)
        ):
            raise ValueError(f"The new shape should have dimension sizes >= {given.shape}, got {known.tolist()}")
    static = _unknown(given) if known is None else TensorShape(known.tolist())
    return sparse("SparseResetShape", reset, inputs, given.dtype, static)


def _filled_in(count: int, sizes: Any) -> Any:
    """A shape of as many elements, with the size that is -1 filled in.

    Raises:
      ValueError: there is none.
    """
    if (sizes == -1).sum() > 1:
        raise ValueError(f"only one output dimension may be -1, not {sizes.tolist()}")
    rest = int(np.prod(sizes[sizes != -1]))
    if (sizes == -1).any() and (rest == 0 or count % rest):
        raise ValueError(
            f"Cannot reshape {count} elements into {sizes.tolist()}: the requested shape requires a multiple of {rest}"
        )
    found = np.where(sizes == -1, count // max(rest, 1), sizes)
    if int(np.prod(found)) != count:
        raise ValueError(
            f"Cannot reshape: Input to reshape is a tensor with {count} dense values, but the requested shape has "
            f"{int(np.prod(found))}"
        )
    return found


def sparse_reshape(sp_input: Any, shape: Any, name: str | None = None) -> SparseTensor:
    """The same elements in another shape; one size may be -1."""
    given, sizes = SparseTensor.from_value(sp_input), recorded(math.cast)(convert(shape), int64)

    def reshape(indices: Any, values: Any, old: Any, new: Any) -> Parts:
        flat = np.ravel_multi_index(tuple(indices.T), tuple(old))
        try:
            target = _filled_in(int(np.prod(old)), new)
        except ValueError as exc:
            raise InvalidArgumentError(None, None, str(exc)) from exc
        return np.column_stack(np.unravel_index(flat, tuple(target))).astype(np.int64), values, target

    known, whole_size = known_value(sizes), given.shape.num_elements()
    static = TensorShape([None] * (sizes.shape.as_list()[0] or 0))
    if known is not None and whole_size is not None and (known == -1).sum() > 1:
        raise ValueError(f"At most one dimension can be inferred (-1), got {known.tolist()}.")
    if known is not None and whole_size is not None:
        static = TensorShape(_filled_in(whole_size, known).tolist())
    elif known is not None:
        static = TensorShape([None if one == -1 else int(one) for one in known])
    return sparse("SparseReshape", reshape, [*given.parts, sizes], given.dtype, static, name)


def sparse_transpose(sp_input: Any, perm: Any = None, name: str | None = None) -> SparseTensor:
    """The axes in another order; reversed without one."""
    given = SparseTensor.from_value(sp_input)

    def transpose(indices: Any, values: Any, shape: Any) -> Parts:
        order = np.arange(len(shape))[::-1] if perm is None else np.asarray(perm)
        return in_order(indices[:, order], values, shape[order])

    static = given.shape
    if static.ndims is not None:
        axes = range(static.ndims)[::-1] if perm is None else [int(one) for one in perm]
        static = TensorShape([static.as_list()[axis] for axis in axes])
    return sparse("SparseTranspose", transpose, given.parts, given.dtype, static, name)


def sparse_add(a: Any, b: Any, threshold: Any = None, thresh: Any = 0) -> Any:
    """The sum of two tensors, of which at least one is sparse; sparse if both are.

    Args:
      threshold: sums that are smaller than this are left out.
    """
    least = thresh if threshold is None else threshold
    are_sparse = [isinstance(one, SparseTensor) or (isinstance(one, tuple) and len(one) == 3) for one in (a, b)]
    if all(are_sparse):
        left, right = SparseTensor.from_value(a), SparseTensor.from_value(b)

        def add(i: Any, v: Any, s: Any, j: Any, w: Any, t: Any) -> Parts:
            if s.tolist() != t.tolist():
                raise InvalidArgumentError(None, None, f"Operands' shapes do not match: {s.tolist()} and {t.tolist()}")
            indices, place = np.unique(np.concatenate([i, j]), axis=0, return_inverse=True)
            sums = np.zeros(len(indices), v.dtype)
            np.add.at(sums, place.reshape(-1), np.concatenate([v, w]))
            kept = np.abs(sums) >= least
            return indices[kept], sums[kept], s

        return sparse("SparseAdd", add, [*left.parts, *right.parts], left.dtype, left.shape)
    if not any(are_sparse):
        raise TypeError("At least one input should be SparseTensor; do you mean to use tf.add()?")
    given, other = (SparseTensor.from_value(a), b) if are_sparse[0] else (SparseTensor.from_value(b), a)
    total = convert(other, given.dtype)

    def add_to(indices: Any, values: Any, shape: Any, array: Any) -> Any:
        del shape
        found = array.copy()
        np.add.at(found, tuple(indices.T), values)
        return found

    return dense("SparseTensorDenseAdd", add_to, [*given.parts, total], given.dtype, total.shape)


def sparse_merge(
    sp_ids: Any, sp_values: Any, vocab_size: Any, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """Numbers and values of features as one sparse tensor: the numbers become the last axis."""
    several = isinstance(sp_ids, list | tuple) and not hasattr(sp_ids, "dense_shape")
    columns = [SparseTensor.from_value(one) for one in (sp_ids if several else [sp_ids])]
    ids, values = columns[0], SparseTensor.from_value(sp_values)
    limits = list(vocab_size) if several else [vocab_size]
    known = [known_value(convert(one)) for one in limits]

    def merge(indices: Any, shape: Any, elements: Any, *rest: Any) -> Parts:
        sizes, numbers = rest[: len(limits)], rest[len(limits) :]
        places = np.column_stack([indices[:, :-1], *(one.astype(np.int64) for one in numbers)])
        whole_shape = np.array([*shape[:-1], *sizes], np.int64)
        return (places, elements, whole_shape) if already_sorted else in_order(places, elements, whole_shape)

    sizes = ids.shape.sizes
    static = None if sizes is None else [*sizes[:-1], *(None if one is None else int(one) for one in known)]
    inputs = [ids.indices, ids.dense_shape, values.values, *map(convert, limits), *(one.values for one in columns)]
    return sparse("SparseMerge", merge, inputs, values.dtype, static, name)


def sparse_mask(a: IndexedSlices, mask_indices: Any, name: str | None = None) -> IndexedSlices:
    """Those rows whose numbers are not in `mask_indices`."""

    def kept(_: Any, values: Any, indices: Any, masked: Any) -> list[Any]:
        mine = ~np.isin(indices, masked)
        return [values[mine], indices[mine]]

    op = record_source(
        "SparseMask",
        kept,
        [a.values, a.indices, convert(mask_indices)],
        dtypes=[a.values.dtype, a.indices.dtype],
        shapes=[[None, *(a.values.shape.as_list()[1:])], [None]],
        name=name,
    )
    return IndexedSlices(op.outputs[0], op.outputs[1], a.dense_shape)


def edit_distance(hypothesis: Any, truth: Any, normalize: bool = True, name: str = "edit_distance") -> Tensor:
    """How many insertions, deletions and substitutions turn each sequence into the other; by default divided by the
    length of the truth.
    """
    left, right = SparseTensor.from_value(hypothesis), SparseTensor.from_value(truth)

    def compute(i: Any, v: Any, s: Any, j: Any, w: Any, t: Any) -> Any:
        shape = tuple(np.maximum(s, t)[:-1])
        found = np.zeros(shape, np.float32)
        ours, theirs = _sequences(i, v), _sequences(j, w)
        for place in np.ndindex(*shape):
            first, second = ours.get(place, []), theirs.get(place, [])
            distance: float = _distance(first, second)
            if normalize:
                distance = distance / len(second) if second else (np.inf if first else 0.0)
            found[place] = distance
        return found

    sizes = [None if one.shape.sizes is None else one.shape.as_list()[:-1] for one in (left, right)]
    static = None
    if sizes[0] is not None and sizes[1] is not None:
        static = [None if a is None or b is None else max(a, b) for a, b in zip(sizes[0], sizes[1], strict=True)]
    return dense("EditDistance", compute, [*left.parts, *right.parts], as_dtype("float32"), static, name)


def _sequences(indices: Any, values: Any) -> dict[tuple[int, ...], list[Any]]:
    found: dict[tuple[int, ...], list[Any]] = {}
    for place, value in zip(indices[:, :-1].tolist(), values.tolist(), strict=True):
        found.setdefault(tuple(place), []).append(value)
    return found


def _distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    row = list(range(len(second) + 1))
    for i, one in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]
