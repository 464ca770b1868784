"""Constants, placeholders, and operations on shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.tf1.graphs.dtypes import array_of, as_dtype, float32, int32
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor, user_line
from trainband.compat.tf1.graphs.record import constant as recorded_constant
from trainband.compat.tf1.graphs.record import convert, convert_pair, known_value, numpy_or_jax, record, record_tensor
from trainband.compat.tf1.graphs.shapes import Dimension, TensorShape, dims_of
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.operations.arithmetic import axes_of
from trainband.compat.tf1.operations.arithmetic import cast as cast


def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str = "Const", verify_shape: bool = False
) -> Tensor:
    """A tensor that is this value always; one number fills a shape.

    Raises:
      TypeError, ValueError: the value is not of the dtype or shape.
    """
    array = array_of(value, None if dtype is None else as_dtype(dtype))
    if shape is not None:
        sizes = tuple(size or 0 for size in dims_of(shape) or ())
        if verify_shape and sizes != array.shape:
            raise TypeError(f"Expected Tensor's shape: {sizes}, got {array.shape}.")
        if array.size == 1:
            array = np.full(sizes, array.reshape(())[()], array.dtype)
        elif array.size == int(np.prod(sizes)):
            array = array.reshape(sizes)
        else:  # TensorFlow repeats the last element
            flat = np.resize(array.ravel()[-1:], int(np.prod(sizes)))
            flat[: array.size] = array.ravel()
            array = flat.reshape(sizes)
    return recorded_constant(array, name)


def convert_to_tensor(value: Any, dtype: Any = None, name: str | None = None, preferred_dtype: Any = None) -> Tensor:  # noqa: ARG001
    """A tensor with the value of anything."""
    return convert(value, None if dtype is None else as_dtype(dtype), name)


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor whose value every run must be given."""

    def compute(frame: Any) -> Any:  # noqa: ARG001 - it has a value only where it is fed
        sizes = "<unknown>" if tensor.shape.sizes is None else str(tensor.shape)
        raise InvalidArgumentError(
            None,
            tensor.op,
            f"You must feed a value for placeholder tensor '{tensor.op.name}' with dtype {tensor.dtype.name} and "
            f"shape {sizes}",
        )

    kind = as_dtype(dtype)
    op = record(
        "Placeholder", compute, name=name or "Placeholder", dtypes=[kind], shapes=[TensorShape(shape)], stateful=True
    )
    tensor: Tensor = op.outputs[0]
    return tensor


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """A tensor whose value a run may be given."""
    tensor = convert(input)
    return record_tensor(
        "PlaceholderWithDefault", lambda x: x, [tensor], name=name, dtypes=[tensor.dtype], shapes=[TensorShape(shape)]
    )


def identity(input: Any, name: str | None = None) -> Any:  # noqa: A002
    """The same value, under a name of its own."""
    if isinstance(input, IndexedSlices):
        return IndexedSlices(identity(input.values, name), input.indices, input.dense_shape)
    return record_tensor("Identity", lambda x: x, [convert(input)], name=name, folds=True)


def _folding_shape(type_: str, of: Any, tensor: Tensor, name: str | None) -> Tensor:
    """An operation of a tensor's shape alone, whose value is known where the sizes are."""
    found: Tensor = record_tensor(type_, of, [tensor], name=name, folds=True)
    if tensor.probes is not None:
        from trainband.compat.tf1.graphs.infer import Probe

        values = [np.asarray(of(jax.ShapeDtypeStruct(p.shape, p.dtype))) for p in tensor.probes]
        same = tensor.probes[0] is tensor.probes[1]
        probes = [Probe(value.shape, value.dtype, value) for value in values]
        found.probes = (probes[0], probes[0] if same else probes[1])
    return found


def shape_of(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:  # noqa: A002
    """The sizes of a tensor."""
    kind = as_dtype(out_type).numpy
    return _folding_shape("Shape", lambda x: np.array(x.shape, kind), convert(input), name)


def rank(input: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """How many axes a tensor has."""
    return _folding_shape("Rank", lambda x: np.array(len(x.shape), np.int32), convert(input), name)


def size(input: Any, name: str | None = None, out_type: Any = int32) -> Tensor:  # noqa: A002
    """How many elements a tensor has."""
    kind = as_dtype(out_type).numpy
    return _folding_shape("Size", lambda x: np.array(int(np.prod(x.shape)), kind), convert(input), name)


def sizes_of(value: Any, what: str) -> tuple[int, ...]:
    """The sizes in an argument while tracing, where they must be known.

    Raises:
      ValueError: they depend on what is computed.
    """
    if isinstance(value, jax.core.Tracer | jax.Array):
        raise ValueError(
            f"{what} is computed from values: shapes must follow from constants and other shapes, because a run is "
            "compiled before it begins."
        )
    return tuple(int(one) for one in np.ravel(value))


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    whole = convert(tensor)
    wanted = convert(shape, None if is_tensor(shape) else int32)
    result = record_tensor(
        "Reshape",
        lambda x, sizes: numpy_or_jax(x).reshape(x, sizes_of(sizes, "the shape of a reshape")),
        [whole, wanted],
        name=name,
        folds=True,
    )
    known = known_value(wanted)
    if result.shape.sizes is None and known is not None:
        result.set_shape(TensorShape([None if one == -1 else int(one) for one in known]))
    return result


def is_tensor(value: Any) -> bool:
    """Whether something is a tensor, or stands for one."""
    return isinstance(value, Tensor) or hasattr(value, "as_tensor")


def transpose(a: Any, perm: Any = None, name: str | None = None, conjugate: bool = False) -> Tensor:  # noqa: ARG001
    """The axes in another order; reversed when left out."""
    order = axes_of(perm)
    return record_tensor(
        "Transpose", lambda x: numpy_or_jax(x).transpose(x, order), [convert(a)], name=name or "transpose", folds=True
    )


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:  # noqa: A002
    """One more axis, of size 1."""
    where = (axes_of(axis if axis is not None else dim) or (0,))[0]
    return record_tensor(
        "ExpandDims", lambda x: numpy_or_jax(x).expand_dims(x, where), [convert(input)], name=name, folds=True
    )


def squeeze(input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None) -> Tensor:  # noqa: A002
    """Without the axes of size 1, or some of them."""
    where = axes_of(axis if axis is not None else squeeze_dims)
    return record_tensor(
        "Squeeze", lambda x: numpy_or_jax(x).squeeze(x, where), [convert(input)], name=name, folds=True
    )


def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """One after the other along an axis."""
    if isinstance(values, int) and not isinstance(axis, int):  # TensorFlow 0.x had it the other way
        values, axis = axis, values
    tensors = _of_one_dtype(values if isinstance(values, list | tuple) else [values])
    where = (axes_of(axis) or (0,))[0]
    return record_tensor(
        "ConcatV2", lambda *xs: numpy_or_jax(*xs).concatenate(xs, axis=where), tensors, name=name, folds=True
    )


def stack(values: Sequence[Any], axis: int = 0, name: str = "stack") -> Tensor:
    """Along a new axis."""
    tensors = _of_one_dtype(list(values))
    return record_tensor("Pack", lambda *xs: numpy_or_jax(*xs).stack(xs, axis), tensors, name=name, folds=True)


def _of_one_dtype(values: Sequence[Any]) -> list[Tensor]:
    known = [convert(one) for one in values if is_tensor(one)]
    return [convert(one, known[0].dtype if known and not is_tensor(one) else None) for one in values]


def unstack(value: Any, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Tensor]:
    """A tensor for each place along an axis.

    Raises:
      ValueError: nobody knows how many.
    """
    tensor = convert(value)
    sizes = tensor.shape.sizes
    count = num if num is not None else None if sizes is None else sizes[axis]
    if count is None:
        raise ValueError(f"Cannot infer num from shape {tensor.shape} (at {user_line()})")

    def compute(x: Any) -> list[Any]:
        xp = numpy_or_jax(x)
        return [xp.take(x, i, axis=axis) for i in range(count)]

    if count == 1:
        return [record_tensor("Unpack", lambda x: compute(x)[0], [tensor], name=name, folds=True)]
    return record("Unpack", compute, [tensor], name=name, count=count, folds=True).outputs


def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    num: int | None = None,  # noqa: ARG001
    name: str = "split",
) -> list[Tensor]:
    """Cut along an axis, into so many equal parts or into parts of these sizes."""
    if isinstance(value, int) and is_tensor(axis):  # TensorFlow 0.x: split(axis, number, value)
        value, axis = axis, value
    tensor = convert(value)
    where = (axes_of(axis) or (0,))[0]
    if isinstance(num_or_size_splits, int | np.integer):
        count, cuts = int(num_or_size_splits), None
    else:
        sizes = axes_of(num_or_size_splits) or ()
        if -1 in sizes:
            whole = tensor.shape.as_list()[where] or 0
            sizes = tuple(whole - sum(s for s in sizes if s != -1) if one == -1 else one for one in sizes)
        count, cuts = len(sizes), list(np.cumsum(sizes)[:-1])

    def compute(x: Any) -> Any:
        return numpy_or_jax(x).split(x, count if cuts is None else cuts, axis=where)

    if count == 1:
        return [identity(tensor, name)]
    return record("Split", compute, [tensor], name=name, count=count, folds=True).outputs


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Repeated along each axis."""
    return record_tensor(
        "Tile",
        lambda x, times: numpy_or_jax(x).tile(x, sizes_of(times, "the multiples of a tile")),
        [convert(input), convert(multiples)],
        name=name,
        folds=True,
    )


def pad(
    tensor: Any, paddings: Any, mode: str = "CONSTANT", name: str | None = None, constant_values: Any = 0
) -> Tensor:
    """More elements before and after, along each axis."""
    kind = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode.upper()]

    def compute(x: Any, widths: Any) -> Any:
        pairs = np.reshape(sizes_of(widths, "the paddings of a pad"), (-1, 2))
        more = {"constant_values": constant_values} if kind == "constant" else {}
        return jnp.pad(x, [(int(a), int(b)) for a, b in pairs], mode=kind, **more)

    return record_tensor("Pad", compute, [convert(tensor), convert(paddings)], name=name)


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A shape filled with one number."""
    return record_tensor(
        "Fill",
        lambda sizes, one: numpy_or_jax(sizes, one).full(sizes_of(sizes, "the shape of a fill"), one, one.dtype),
        [shape_tensor(dims), convert(value)],
        name=name,
        folds=True,
    )


def shape_tensor(dims: Any) -> Tensor:
    """A shape as a tensor."""
    if isinstance(dims, TensorShape | int | np.integer | Dimension) or (isinstance(dims, list | tuple) and not dims):
        return recorded_constant(np.array(dims_of(dims), np.int32))
    return convert(dims)


def zeros(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """All zero."""
    return fill(shape_tensor(shape), np.zeros((), as_dtype(dtype).numpy), name or "zeros")


def ones(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """All one."""
    return fill(shape_tensor(shape), np.ones((), as_dtype(dtype).numpy), name or "ones")


def zeros_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:  # noqa: ARG001
    """Zeros in the shape of another."""
    whole = convert(tensor)
    kind = whole.dtype.numpy if dtype is None else as_dtype(dtype).numpy
    return record_tensor(
        "ZerosLike", lambda x: numpy_or_jax(x).zeros(x.shape, kind), [whole], name=name or "zeros_like"
    )


def ones_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:  # noqa: ARG001
    """Ones in the shape of another."""
    whole = convert(tensor)
    kind = whole.dtype.numpy if dtype is None else as_dtype(dtype).numpy
    return record_tensor("OnesLike", lambda x: numpy_or_jax(x).ones(x.shape, kind), [whole], name=name or "ones_like")


def range_(start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range") -> Tensor:
    """Numbers from `start` up to below `limit`."""
    if limit is None:
        start, limit = 0, start
    kind = None if dtype is None else as_dtype(dtype)
    first = [one for one in (start, limit, delta) if is_tensor(one)]
    if kind is None:
        kind = (
            convert(first[0]).dtype
            if first
            else as_dtype(np.result_type(*(array_of(o) for o in (start, limit, delta))))
        )
    inputs = [cast(convert(one), kind) for one in (start, limit, delta)]

    def compute(a: Any, b: Any, step: Any) -> Any:
        for one in (a, b, step):
            if isinstance(one, jax.core.Tracer | jax.Array):
                raise ValueError("the limits of a range are computed from values; its size must be known beforehand.")
        return np.arange(a, b, step, dtype=kind.numpy)

    return record_tensor("Range", compute, inputs, name=name, folds=True)


def linspace(start: Any, stop: Any, num: int, name: str | None = None) -> Tensor:
    """So many numbers, evenly from one to the other."""
    first, last = convert_pair(start, stop, "LinSpace")
    return record_tensor("LinSpace", lambda a, b: jnp.linspace(a, b, int(num), dtype=a.dtype), [first, last], name=name)


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Tensor:
    """Backwards along some axes."""
    axes = axes_of(axis)
    return record_tensor("ReverseV2", lambda x: numpy_or_jax(x).flip(x, axes), [convert(tensor)], name=name, folds=True)


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """Repeated to fill a shape."""
    return record_tensor(
        "BroadcastTo",
        lambda x, sizes: jnp.broadcast_to(x, sizes_of(sizes, "the shape of broadcast_to")),
        [convert(input), shape_tensor(shape)],
        name=name,
    )


def diag(diagonal: Any, name: str | None = None) -> Tensor:
    """A matrix with this diagonal."""
    return record_tensor("Diag", jnp.diag, [convert(diagonal)], name=name)


def eye(num_rows: int, num_columns: int | None = None, dtype: Any = float32, name: str | None = None) -> Tensor:
    """Ones on the diagonal."""
    return recorded_constant(np.eye(int(num_rows), num_columns, dtype=as_dtype(dtype).numpy), name or "eye")
