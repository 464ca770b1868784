"""`tf.sparse`: tensors of which only some elements are kept. Places are known; derivatives go through the elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.execute import compute, convert
from trainband.compat.tf2.eager.sparse_tensor import SparseTensor as SparseTensor
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known

_gather, _sum = known("tf.gather"), known("tf.math.segment_sum")


def places(sparse: SparseTensor) -> np.ndarray[Any, Any]:
    """The places as numbers."""
    return np.asarray(sparse.indices.numpy()).reshape(-1, sparse.rank)


def _sizes(sparse: SparseTensor) -> tuple[int, ...]:
    return tuple(int(one) for one in np.asarray(sparse.dense_shape.numpy()))


def _made(at: Any, values: Any, sizes: Sequence[int]) -> SparseTensor:
    return SparseTensor(np.asarray(at, np.int64).reshape(-1, len(sizes)), values, np.asarray(sizes, np.int64))


def _is_ordered(at: np.ndarray[Any, Any], sizes: Sequence[int]) -> bool:
    flat = np.ravel_multi_index(tuple(at.T), sizes) if at.size else np.zeros(0)
    return bool(np.all(np.diff(flat) > 0))


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """The elements of a tensor that are not zero."""
    del name
    whole = convert(tensor)
    at = np.argwhere(np.asarray(whole.numpy()) != (b"" if whole.dtype.name == "string" else 0))
    return _made(at, known("tf.gather_nd")(whole, at.astype(np.int64)), whole.aval[0])


def to_dense(
    sp_input: SparseTensor, default_value: Any = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The whole tensor; what is not kept is the default value, or 0.

    Raises:
      InvalidArgumentError: the places are not in order.
    """
    del name
    at, sizes = places(sp_input), _sizes(sp_input)
    if validate_indices and not _is_ordered(at, sizes):
        raise InvalidArgumentError(None, None, "indices are out of order or repeated; use tf.sparse.reorder first")
    fill = convert(0 if default_value is None else default_value, sp_input.dtype)

    def call(values: Any, rest: Any) -> Any:
        return (jnp.full(sizes, rest, values.dtype).at[tuple(at.T)].set(values),)

    return compute(("to_dense", sizes, at.tobytes()), call, [sp_input.values, fill])[0]


def reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The same in the order of the places."""
    del name
    at = places(sp_input)
    order = np.lexsort(at.T[::-1])
    return _made(at[order], _gather(sp_input.values, order), _sizes(sp_input))


def sparse_dense_matmul(
    sp_a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """The product of matrices, of which one is sparse."""
    del name
    if isinstance(b, SparseTensor) and not isinstance(sp_a, SparseTensor):
        found = sparse_dense_matmul(b, sp_a, not adjoint_b, not adjoint_a)
        turned: Tensor = known("tf.transpose")(found)
        return turned
    at, (height, width) = places(sp_a), _sizes(sp_a)
    rows, columns = (at[:, 1], at[:, 0]) if adjoint_a else (at[:, 0], at[:, 1])
    count = width if adjoint_a else height

    def call(values: Any, dense: Any) -> Any:
        right = jnp.conj(dense).T if adjoint_b else dense
        left = jnp.conj(values) if adjoint_a else values
        return (jnp.zeros((count, right.shape[1]), right.dtype).at[rows].add(left[:, None] * right[columns]),)

    key = ("sparse_dense_matmul", at.tobytes(), count, adjoint_a, adjoint_b)
    return compute(key, call, [sp_a.values, convert(b)])[0]


def _reduced(title: str, fold: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        sp_input: SparseTensor, axis: Any = None, keepdims: Any = None, output_is_sparse: bool = False, name: Any = None
    ) -> Any:
        del name
        at, sizes = places(sp_input), _sizes(sp_input)
        axes = range(len(sizes)) if axis is None else [axis] if isinstance(axis, int) else axis
        gone = {int(one) % len(sizes) for one in axes}
        kept = [one for one in range(len(sizes)) if one not in gone]
        left = [sizes[one] for one in kept]
        keys = np.ravel_multi_index(tuple(at[:, kept].T), left) if kept and at.size else np.zeros(len(at), np.int64)
        found, group = np.unique(keys, return_inverse=True)

        def call(values: Any) -> Any:
            return (fold(values, group, len(found)),)

        values = compute((title, group.tobytes(), len(found)), call, [sp_input.values])[0]
        shape = [1 if one in gone else sizes[one] for one in range(len(sizes))] if keepdims else left
        where = np.stack(np.unravel_index(found, left), 1) if kept else np.zeros((len(found), 0), np.int64)
        if keepdims:
            whole = np.zeros((len(found), len(sizes)), np.int64)
            whole[:, kept] = where
            where = whole
        result = _made(where, values, shape) if shape else None
        if output_is_sparse and result is not None:
            return result
        if result is None:
            return values[0] if len(found) else Tensor(np.zeros((), sp_input.dtype.numpy))
        return to_dense(result)

    reduce.__name__ = reduce.__qualname__ = title
    reduce.__doc__ = f"The {title.rpartition('_')[2]} of the elements along axes."
    return reduce


def _highest(values: Any, group: Any, count: int) -> Any:
    is_float = jnp.issubdtype(values.dtype, jnp.floating)
    least = -np.inf if is_float else np.iinfo(np.dtype(values.dtype)).min
    return jnp.full(count, least, values.dtype).at[group].max(values)


reduce_sum = _reduced("reduce_sum", lambda values, group, count: jnp.zeros(count, values.dtype).at[group].add(values))
reduce_max = _reduced("reduce_max", _highest)


def add(a: Any, b: Any, threshold: Any = 0) -> Any:
    """The sum of two tensors, of which one or both are sparse."""
    del threshold
    if not (isinstance(a, SparseTensor) and isinstance(b, SparseTensor)):
        sparse, dense = (a, b) if isinstance(a, SparseTensor) else (b, a)
        return convert(dense) + to_dense(reorder(sparse))
    sizes = _sizes(a)
    if sizes != _sizes(b):
        raise ValueError(f"Operands do not have the same shape: {sizes} and {_sizes(b)}")
    both = np.concatenate([places(a), places(b)])
    keys = np.ravel_multi_index(tuple(both.T), sizes) if both.size else np.zeros(0, np.int64)
    found, group = np.unique(keys, return_inverse=True)
    values = known("tf.concat")([a.values, b.values], 0)
    total = compute(
        ("sparse add", group.tobytes(), len(found)),
        lambda every: (jnp.zeros(len(found), every.dtype).at[group].add(every),),
        [values],
    )[0]
    return _made(np.stack(np.unravel_index(found, sizes), 1), total, sizes)


def concat(axis: int, sp_inputs: Sequence[SparseTensor], expand_nonconcat_dims: bool = False, name: Any = None) -> Any:
    """Several of them, joined along an axis."""
    del name
    sizes = [_sizes(one) for one in sp_inputs]
    rank = len(sizes[0])
    along = axis % rank
    others = {tuple(s for at, s in enumerate(one) if at != along) for one in sizes}
    if len(others) > 1 and not expand_nonconcat_dims:
        raise InvalidArgumentError(None, None, f"Concat dimension {along} of shapes {sizes} do not match")
    parts, offset = [], 0
    for one, size in zip(sp_inputs, sizes, strict=True):
        at = places(one).copy()
        at[:, along] += offset
        offset += size[along]
        parts.append(at)
    whole = [max(one[at] for one in sizes) for at in range(rank)]
    whole[along] = offset
    values = known("tf.concat")([one.values for one in sp_inputs], 0)
    return reorder(_made(np.concatenate(parts), values, whole))


def retain(sp_input: SparseTensor, to_retain: Any) -> SparseTensor:
    """Those elements for which a mask is true."""
    kept = np.flatnonzero(np.asarray(convert(to_retain).numpy()))
    return _made(places(sp_input)[kept], _gather(sp_input.values, kept), _sizes(sp_input))


def reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """The same elements in another shape."""
    del name
    sizes, new = _sizes(sp_input), [int(one) for one in np.asarray(convert(shape).numpy())]
    if -1 in new:
        rest = int(np.prod([one for one in new if one != -1]))
        new[new.index(-1)] = int(np.prod(sizes)) // max(rest, 1)
    if int(np.prod(new)) != int(np.prod(sizes)):
        raise InvalidArgumentError(None, None, f"Input to reshape is a tensor with {int(np.prod(sizes))} dense values, "
                                   f"but the requested shape has {int(np.prod(new))}")  # fmt: skip
    flat = np.ravel_multi_index(tuple(places(sp_input).T), sizes)
    return _made(np.stack(np.unravel_index(flat, new), 1), sp_input.values, new)


def transpose(sp_input: SparseTensor, perm: Any = None, name: str | None = None) -> SparseTensor:
    """The axes in another order."""
    del name
    order = list(range(sp_input.rank))[::-1] if perm is None else [int(one) for one in perm]
    sizes = _sizes(sp_input)
    return reorder(_made(places(sp_input)[:, order], sp_input.values, [sizes[one] for one in order]))


def expand_dims(sp_input: SparseTensor, axis: Any = None, name: str | None = None) -> SparseTensor:
    """With an axis of size 1."""
    del name
    sizes = list(_sizes(sp_input))
    where = (-1 if axis is None else int(axis)) % (len(sizes) + 1)
    return _made(np.insert(places(sp_input), where, 0, 1), sp_input.values, [*sizes[:where], 1, *sizes[where:]])


def slice(sp_input: SparseTensor, start: Any, size: Any, name: str | None = None) -> SparseTensor:  # noqa: A001
    """A part."""
    del name
    begin = np.asarray(convert(start).numpy())
    whole = np.asarray(_sizes(sp_input))
    length = np.minimum(np.asarray(convert(size).numpy()), whole - begin)
    at = places(sp_input)
    kept = np.flatnonzero(np.all((at >= begin) & (at < begin + length), 1))
    return _made(at[kept] - begin, _gather(sp_input.values, kept), [int(one) for one in length])


def softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The softmax of what is kept of each row."""
    del name
    at, sizes = places(sp_input), _sizes(sp_input)
    _, group = np.unique(np.ravel_multi_index(tuple(at[:, :-1].T), sizes[:-1]), return_inverse=True)
    count = int(group.max(initial=-1)) + 1

    def call(values: Any) -> Any:
        powers = jnp.exp(values - _highest(values, group, count)[group])
        return (powers / jnp.zeros(count, values.dtype).at[group].add(powers)[group],)

    return sp_input.with_values(compute(("sparse softmax", group.tobytes()), call, [sp_input.values])[0])


def eye(num_rows: int, num_columns: int | None = None, dtype: Any = "float32", name: str | None = None) -> SparseTensor:
    """Ones on the diagonal."""
    del name
    columns = num_rows if num_columns is None else num_columns
    at = np.arange(min(num_rows, columns))
    return _made(np.stack([at, at], 1), np.ones(len(at), as_dtype(dtype).numpy), [num_rows, columns])


def map_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """What a function gives for the elements."""
    first = next(one for one in (*args, *kwargs.values()) if isinstance(one, SparseTensor))
    parts = [one.values if isinstance(one, SparseTensor) else one for one in args]
    named = {name: one.values if isinstance(one, SparseTensor) else one for name, one in kwargs.items()}
    return first.with_values(op(*parts, **named))


def to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Tensor:
    """Which numbers, up to a limit, are among those of each row."""
    del name
    at, numbers = places(sp_input), np.asarray(sp_input.values.numpy())
    whole = np.zeros([*_sizes(sp_input)[:-1], vocab_size], bool)
    whole[(*at[:, :-1].T, numbers)] = True
    return Tensor(whole)


def mask(a: Any, mask_indices: Any, name: str | None = None) -> Any:
    """Slices, without those of some numbers."""
    del name
    kept = np.flatnonzero(~np.isin(np.asarray(a.indices.numpy()), np.asarray(convert(mask_indices).numpy())))
    return type(a)(_gather(a.values, kept), _gather(a.indices, kept), a.dense_shape)
