"""Operations on shapes, and arrays made from nothing but a shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of, axis_of, known, numpy_or_jax, sizes_of
from trainband.compat.ops.dtypes import array_of, as_dtype, float32, int32
from trainband.compat.ops.math import as_fractions
from trainband.compat.ops.shapes import dims_of
from trainband.compat.ops.table import op


def constant(value: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False) -> np.ndarray[Any, Any]:
    """Return an array of the dtype that TensorFlow gives a Python value. A single number fills a shape.

    Raises:
      TypeError: the value does not have the dtype, or the shape if that is to be verified.
    """
    array = array_of(value, None if dtype is None else as_dtype(dtype))
    if shape is None:
        return array
    sizes = tuple(size or 0 for size in dims_of(shape) or ())
    if verify_shape and sizes != array.shape:
        raise TypeError(f"Expected Tensor's shape: {sizes}, got {array.shape}.")
    if array.size == 1:
        return np.full(sizes, array.reshape(())[()], array.dtype)
    if array.size == int(np.prod(sizes)):
        return array.reshape(sizes)
    flat = np.resize(array.ravel()[-1:], int(np.prod(sizes)))  # TensorFlow repeats the last element
    flat[: array.size] = array.ravel()
    return flat.reshape(sizes)


@op("tf.identity", type="Identity", tensors="input", by_row="input", folds=True)
def identity(input: Any) -> Any:  # noqa: A002 - TensorFlow's name
    """The same value."""
    return input


@op("tf.identity_n", type="IdentityN", lists="input", outputs=lambda **given: len(given["input"]), folds=True)
def identity_n(input: Sequence[Any]) -> Any:  # noqa: A002
    """The same values."""
    return list(input)


@op("tf.guarantee_const", type="GuaranteeConst", tensors="input", folds=True)
def guarantee_const(input: Any) -> Any:  # noqa: A002
    """The same value."""
    return input


@op("tf.shape", type="Shape", tensors="input", of_shape=True, folds=True, v1="input name out_type")
def shape(input: Any, out_type: Any = int32) -> Any:  # noqa: A002
    """The sizes of an array."""
    return np.array(input.shape, as_dtype(out_type).numpy)


@op("tf.rank", type="Rank", tensors="input", of_shape=True, folds=True)
def rank(input: Any) -> Any:  # noqa: A002
    """How many axes an array has."""
    return np.array(len(input.shape), np.int32)


@op("tf.size", type="Size", tensors="input", of_shape=True, folds=True, v1="input name out_type")
def size(input: Any, out_type: Any = int32) -> Any:  # noqa: A002
    """How many elements an array has."""
    return np.asarray(np.prod(input.shape, dtype=np.int64)).astype(as_dtype(out_type).numpy)


@op("tf.reshape", type="Reshape", tensors="tensor shape", shapes="shape", folds=True, ranked_by="shape")
def reshape(tensor: Any, shape: Any) -> Any:
    """The same elements in another shape; one size may be -1."""
    sizes = sizes_of(shape, "the shape of a reshape")
    if -1 in sizes and 0 in sizes and np.size(tensor) == 0:  # TensorFlow leaves out the sizes that are zero
        left = int(np.prod([one for one in np.shape(tensor) if one]))
        rest = left // int(np.prod([one for one in sizes if one not in (0, -1)]))
        sizes = tuple(rest if one == -1 else one for one in sizes)
    return numpy_or_jax(tensor).reshape(tensor, sizes)


@op("tf.transpose", type="Transpose", tensors="a", folds=True, title="transpose", v1="a perm name conjugate")
def transpose(a: Any, perm: Any = None, conjugate: bool = False) -> Any:
    """The axes in another order; reversed when left out."""
    moved = numpy_or_jax(a).transpose(a, axes_of(perm))
    return moved.conj() if conjugate else moved


@op("tf.expand_dims", type="ExpandDims", tensors="input", folds=True, v1="input axis name dim=axis")
def expand_dims(input: Any, axis: Any) -> Any:  # noqa: A002
    """Add an axis of size 1."""
    return numpy_or_jax(input).expand_dims(input, axis_of(axis))


@op("tf.squeeze", type="Squeeze", tensors="input", folds=True, v1="input axis name squeeze_dims=axis")
def squeeze(input: Any, axis: Any = None) -> Any:  # noqa: A002
    """Remove the axes of size 1, or some of them; an empty list of axes means all, as in TensorFlow."""
    return numpy_or_jax(input).squeeze(input, axes_of(axis) or None)


@op("tf.concat", type="ConcatV2", lists="values", folds=True, title="concat")
def concat(values: Sequence[Any], axis: Any) -> Any:
    """Join arrays along an axis."""
    if any(np.ndim(one) == 0 for one in values):
        raise ArgumentError("Can't concatenate scalars (use tf.stack instead)")
    return numpy_or_jax(*values).concatenate(values, axis=axis_of(axis))


@op("tf.stack", v1_names="tf.pack", type="Pack", lists="values", folds=True, title="stack")
def stack(values: Sequence[Any], axis: Any = 0) -> Any:
    """Join arrays along a new axis."""
    return numpy_or_jax(*values).stack(values, axis_of(axis))


def _places(value: Any, num: Any, axis: Any) -> int:
    if num is not None:
        return int(num)
    known = None if value.shape is None else value.shape[axis_of(axis)]
    if known is None:
        raise ArgumentError(f"Cannot infer num from shape {value.shape}")
    return int(known)


@op("tf.unstack", v1_names="tf.unpack", type="Unpack", tensors="value", outputs=_places, folds=True, title="unstack")
def unstack(value: Any, num: Any = None, axis: Any = 0) -> Any:
    """Split an array into one for each place along an axis."""
    xp, where = numpy_or_jax(value), axis_of(axis)
    return [xp.take(value, i, axis=where) for i in range(_places(value, num, axis))]


def _parts(num_or_size_splits: Any, num: Any = None, **_: Any) -> int:
    shape = getattr(num_or_size_splits, "shape", np.shape(num_or_size_splits))
    if shape is None:
        raise ArgumentError("Cannot infer num from the unknown shape of the sizes of a split")
    if not shape:
        return int(np.asarray(num_or_size_splits))
    if shape[0] is None and num is None:
        raise ArgumentError("Cannot infer num from the shape of the sizes of a split: pass num")
    if num is not None and shape[0] not in (None, num):
        raise ArgumentError(f"num is {num}, but there are {shape[0]} sizes of a split")
    return int(num if shape[0] is None else shape[0])


@op(
    "tf.split",
    type="Split",
    tensors="value",
    outputs=_parts,
    folds=True,
    title="split",
    v1="value num_or_size_splits axis num name",
)
def split(value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None) -> Any:  # noqa: ARG001
    """Split along an axis, into a number of equal parts or into parts of given sizes; one size may be -1."""
    where = axis_of(axis)
    if np.ndim(num_or_size_splits) == 0:
        if value.shape[where] % int(num_or_size_splits):
            raise ValueError(f"Number of ways to split should evenly divide the split dimension {value.shape[where]}")
        return numpy_or_jax(value).split(value, int(num_or_size_splits), axis=where)
    sizes = sizes_of(num_or_size_splits, "the sizes of a split")
    rest = value.shape[where] - sum(one for one in sizes if one != -1)
    cuts = np.cumsum([rest if one == -1 else one for one in sizes])[:-1]
    return numpy_or_jax(value).split(value, [int(cut) for cut in cuts], axis=where)


@op("tf.tile", type="Tile", tensors="input multiples", shapes="multiples", folds=True, ranked_by="input")
def tile(input: Any, multiples: Any) -> Any:  # noqa: A002
    """Repeat an array along each axis."""
    times = sizes_of(multiples, "the multiples of a tile")
    if len(times) != np.ndim(input):
        raise ArgumentError(f"Shape must be rank {len(times)} but is rank {np.ndim(input)} for 'Tile'")
    return numpy_or_jax(input).tile(input, times)


_MODES = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}


@op(
    "tf.pad",
    type="Pad",
    tensors="tensor paddings",
    shapes="paddings",
    v1="tensor paddings mode name constant_values",
    folds=True,
    ranked_by="tensor",
)
def pad(tensor: Any, paddings: Any, mode: str = "CONSTANT", constant_values: Any = 0) -> Any:
    """Add elements before and after, along each axis."""
    kind = _MODES[mode.upper()]
    pairs = np.reshape(sizes_of(paddings, "the paddings of a pad"), (-1, 2))
    if len(pairs) != np.ndim(tensor):
        raise ArgumentError(f"Shape must be rank {len(pairs)} but is rank {np.ndim(tensor)} for 'Pad'")
    if (pairs < 0).any():
        raise ArgumentError(f"Paddings must be non-negative, got {pairs.tolist()}")
    most = None if kind == "constant" else np.array(np.shape(tensor)) - (kind == "reflect")
    if most is not None and (pairs > most[:, None]).any():
        raise ArgumentError(
            f"paddings must be less than the dimension size: {pairs.tolist()} not less than {most.tolist()}"
        )
    if not len(pairs):
        return tensor
    more = {}
    if kind == "constant":
        is_text = tensor.dtype == object and isinstance(constant_values, int)
        more = {"constant_values": b"" if is_text else constant_values}
    return numpy_or_jax(tensor).pad(tensor, [(int(a), int(b)) for a, b in pairs], mode=kind, **more)


@op("tf.fill", type="Fill", tensors="dims value", shapes="dims", folds=True, ranked_by="dims")
def fill(dims: Any, value: Any) -> Any:
    """A shape filled with one number."""
    return numpy_or_jax(dims, value).broadcast_to(value, sizes_of(dims, "the shape of a fill"))


@op("tf.zeros", type="Fill", tensors="shape", shapes="shape", folds=True, title="zeros", ranked_by="shape")
def zeros(shape: Any, dtype: Any = float32) -> Any:
    """All zero."""
    return np.broadcast_to(np.zeros((), as_dtype(dtype).numpy), sizes_of(shape, "the shape of a fill"))


@op("tf.ones", type="Fill", tensors="shape", shapes="shape", folds=True, title="ones", ranked_by="shape")
def ones(shape: Any, dtype: Any = float32) -> Any:
    """All one."""
    return np.broadcast_to(np.ones((), as_dtype(dtype).numpy), sizes_of(shape, "the shape of a fill"))


def _kind_of(array: Any, dtype: Any) -> Any:
    return array.dtype if dtype is None else as_dtype(dtype).numpy


@op(
    "tf.zeros_like",
    type="ZerosLike",
    tensors="tensor",
    title="zeros_like",
    flat=True,
    v1="tensor dtype name -optimize=True",
)
def zeros_like(tensor: Any, dtype: Any = None) -> Any:
    """Zeros in the shape of another array."""
    return numpy_or_jax(tensor).zeros(tensor.shape, _kind_of(tensor, dtype))


@op(
    "tf.ones_like",
    type="OnesLike",
    tensors="tensor",
    title="ones_like",
    flat=True,
    v1="tensor dtype name -optimize=True",
)
def ones_like(tensor: Any, dtype: Any = None) -> Any:
    """Ones in the shape of another array."""
    return numpy_or_jax(tensor).ones(tensor.shape, _kind_of(tensor, dtype))


@op("tf.range", type="Range", tensors="start limit delta", optional="limit delta", folds=True, title="range")
def range_(start: Any, limit: Any = None, delta: Any = None, dtype: Any = None) -> Any:
    """The numbers from `start` up to below `limit`, or from 0 up to below the only one that is given."""
    if limit is None:
        start, limit = np.zeros((), start.dtype), start
    step = np.ones((), start.dtype) if delta is None else delta
    start, limit, step = (known(one, "a limit of a range") for one in (start, limit, step))
    if dtype is not None:
        kind = as_dtype(dtype).numpy
    else:
        kinds = [one.dtype for one in (start, limit, step)]
        kind = np.result_type(*([one for one in kinds if jnp.issubdtype(one, jnp.floating)] or kinds))
    first, end, by = (one.astype(kind) for one in (start, limit, step))
    return np.arange(first, end, by, dtype=kind)  # type: ignore[arg-type]


@op("tf.linspace", v1_names="tf.lin_space", type="LinSpace", tensors="start stop", alike="start stop")
def linspace(start: Any, stop: Any, num: Any) -> Any:
    """Return `num` evenly spaced numbers from `start` to `stop`; of whole numbers, fractions."""
    first, last = as_fractions(start, stop)
    return jnp.linspace(first, last, int(num), dtype=first.dtype)


@op("tf.reverse", v1_names="tf.reverse_v2", type="ReverseV2", tensors="tensor", folds=True)
def reverse(tensor: Any, axis: Any) -> Any:
    """Reverse the order along some axes."""
    return numpy_or_jax(tensor).flip(tensor, axes_of(axis))


@op("tf.broadcast_to", type="BroadcastTo", tensors="input shape", shapes="shape", folds=True, ranked_by="shape")
def broadcast_to(input: Any, shape: Any) -> Any:  # noqa: A002
    """Repeat an array to fill a shape."""
    return numpy_or_jax(input).broadcast_to(input, sizes_of(shape, "the shape of broadcast_to"))


@op("tf.linalg.eye tf.eye", type="Const", folds=True, title="eye", v1="num_rows num_columns batch_shape dtype name")
def eye(num_rows: Any, num_columns: Any = None, dtype: Any = float32, batch_shape: Any = None) -> Any:
    """A matrix with ones on its diagonal, or many of them."""
    columns = None if num_columns is None else int(num_columns)
    one = np.eye(int(num_rows), columns, dtype=as_dtype(dtype).numpy)
    return one if batch_shape is None else np.broadcast_to(one, (*sizes_of(batch_shape, "a shape"), *one.shape)).copy()


@op("tf.ensure_shape", type="EnsureShape", tensors="x", by_row="x", folds=True)
def ensure_shape(x: Any, shape: Any) -> Any:
    """The same array, which must have this shape, of which sizes may be unknown."""
    wanted = dims_of(shape)
    if wanted is not None and (
        len(wanted) != np.ndim(x) or any(a is not None and a != b for a, b in zip(wanted, x.shape, strict=True))
    ):
        raise ArgumentError(f"Shape of tensor {x.shape} is not compatible with expected shape {wanted}.")
    return x
