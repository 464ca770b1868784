"""Elements in another order or arrangement: blocks of images, rolled, repeated and reversed axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of, axis_of, numpy_or_jax, sizes_of
from trainband.compat.ops.checks import check, check_range
from trainband.compat.ops.dtypes import as_dtype, int32
from trainband.compat.ops.table import op


def _count_of(name: str) -> Callable[..., int]:
    """As many outputs as a list has arrays."""
    return lambda **arguments: len(arguments[name])


@op("tf.shape_n", type="ShapeN", lists="input", outputs=_count_of("input"), folds=True)
def shape_n(input: Sequence[Any], out_type: Any = int32) -> Any:  # noqa: A002 - TensorFlow's name
    """The sizes of several arrays."""
    return [np.array(one.shape, as_dtype(out_type).numpy) for one in input]


@op("tf.broadcast_dynamic_shape", type="BroadcastArgs", tensors="shape_x shape_y", shapes="shape_x shape_y", folds=True)
def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Any:
    """The shape of what two shapes broadcast to."""
    shapes = [sizes_of(one, "a shape that is broadcast") for one in (shape_x, shape_y)]
    return np.array(np.broadcast_shapes(*shapes), np.int32)


@op("tf.parallel_stack", type="ParallelConcat", lists="values", folds=True)
def parallel_stack(values: Sequence[Any]) -> Any:
    """Join arrays along a new first axis."""
    return numpy_or_jax(*values).stack(values, 0)


@op("tf.repeat", type="Repeat", tensors="input repeats", shapes="repeats", v1="input repeats axis name")
def repeat(input: Any, repeats: Any, axis: Any = None) -> Any:  # noqa: A002
    """Repeat each element along an axis, or of the whole as a list; the numbers must be known."""
    times = sizes_of(repeats, "the repeats")
    where = None if axis is None else axis_of(axis)
    return jnp.repeat(input, times[0] if len(times) == 1 else np.array(times), axis=where)


@op("tf.roll", v1_names="tf.manip.roll", type="Roll", tensors="input shift", folds=True)
def roll(input: Any, shift: Any, axis: Any) -> Any:  # noqa: A002
    """Move the elements along some axes; those that leave one end come in at the other."""
    if np.ndim(input) < 1:
        raise ArgumentError(f"input must be 1-D or higher: Shape must be at least rank 1 but is rank {np.ndim(input)}")
    for what, value in (("shift", shift), ("axis", axis)):
        if np.ndim(value) > 1:
            rank = np.ndim(value)
            raise ArgumentError(
                f"{what} must be a scalar or a 1-D vector: Shape must be at most rank 1 but is rank {rank}"
            )
    where = axes_of(axis) or ()
    if np.shape(shift) not in ((), (len(where),)) or (np.ndim(axis) and not np.ndim(shift)):
        raise ValueError("shift and axis must have the same size: both shapes must be equal")
    if any(not -np.ndim(input) <= one < np.ndim(input) for one in where):
        raise ValueError(f"axis {where} is out of range for {np.ndim(input)} dimensions")
    xp = numpy_or_jax(input, shift)
    for i, one in enumerate(where):
        input = xp.roll(input, xp.ravel(shift)[i], one)  # noqa: A001
    return input


@op("tf.meshgrid", type="Meshgrid", lists="args", outputs=_count_of("args"))
def meshgrid(*args: Any, indexing: str = "xy") -> Any:
    """The coordinates of a grid, an array for each axis."""
    return jnp.meshgrid(*args, indexing=indexing)


@op(
    "tf.reverse_sequence",
    type="ReverseSequence",
    tensors="input seq_lengths",
    v1="input seq_lengths seq_axis batch_axis name seq_dim=seq_axis batch_dim=batch_axis",
)
def reverse_sequence(input: Any, seq_lengths: Any, seq_axis: Any = None, batch_axis: Any = 0) -> Any:  # noqa: A002
    """Reverse the first elements of each sequence, as many as it has."""
    if seq_axis is None:
        raise ArgumentError("reverse_sequence: seq_axis must be given.")
    steps, batch = axis_of(seq_axis) % input.ndim, axis_of(batch_axis) % input.ndim
    places = jnp.arange(input.shape[steps])
    lengths = jnp.asarray(seq_lengths)[:, None]
    order = jnp.where(places < lengths, lengths - 1 - places, places)
    order = order if batch < steps else order.T
    shape = [size if axis in (steps, batch) else 1 for axis, size in enumerate(input.shape)]
    return jnp.take_along_axis(jnp.asarray(input), order.reshape(shape), axis=steps)


@op("tf.math.invert_permutation tf.invert_permutation", type="InvertPermutation", tensors="x")
def invert_permutation(x: Any) -> Any:
    """Where each number is in a permutation."""
    xp = numpy_or_jax(x)
    check(lambda: (xp.sort(x) == np.arange(x.size)).all(), f"x must have each number of [0, {x.size}) once")
    return jnp.argsort(x).astype(x.dtype)


@op("tf.unravel_index", type="UnravelIndex", tensors="indices dims", alike="indices dims", shapes="dims")
def unravel_index(indices: Any, dims: Any) -> Any:
    """Where elements are, along each axis, from their numbers in a flat array."""
    sizes = sizes_of(dims, "the sizes of an array")
    check_range(indices, int(np.prod(sizes)))
    return jnp.stack(jnp.unravel_index(jnp.asarray(indices), sizes)).astype(indices.dtype)


@op("tf.sort", type="sort", tensors="values")
def sort(values: Any, axis: Any = -1, direction: str = "ASCENDING") -> Any:
    """Sort along an axis."""
    return jnp.sort(values, axis=axis_of(axis, -1), descending=direction == "DESCENDING")


@op("tf.argsort", type="argsort", tensors="values")
def argsort(values: Any, axis: Any = -1, direction: str = "ASCENDING", stable: bool = False) -> Any:  # noqa: ARG001
    """The order that sorts along an axis; equal elements keep theirs."""
    return jnp.argsort(values, axis=axis_of(axis, -1), descending=direction == "DESCENDING").astype(np.int32)


@op("tf.searchsorted", type="SearchSorted", tensors="sorted_sequence values", alike="sorted_sequence values")
def searchsorted(sorted_sequence: Any, values: Any, side: str = "left", out_type: Any = int32) -> Any:
    """Where values would have to go to keep the sequences along the last axis sorted."""

    def of_row(row: Any, some: Any) -> Any:
        return jnp.searchsorted(row, some, side=side)

    for _ in range(np.ndim(sorted_sequence) - 1):
        of_row = jax.vmap(of_row)
    return of_row(jnp.asarray(sorted_sequence), jnp.asarray(values)).astype(as_dtype(out_type).numpy)


# --- images


def _in_nhwc(value: Any, data_format: str) -> Any:
    return value if data_format == "NHWC" else jnp.moveaxis(value, 1, -1)


def _out_of_nhwc(value: Any, data_format: str) -> Any:
    return value if data_format == "NHWC" else jnp.moveaxis(value, -1, 1)


@op(
    "tf.nn.space_to_depth", v1_names="tf.space_to_depth", type="SpaceToDepth", tensors="input",
    v1="input block_size name data_format",
)  # fmt: skip
def space_to_depth(input: Any, block_size: Any, data_format: str = "NHWC") -> Any:  # noqa: A002
    """Blocks of an image as the channels of one place."""
    x, size = _in_nhwc(input, data_format), int(block_size)
    n, height, width, depth = x.shape
    blocks = x.reshape(n, height // size, size, width // size, size, depth).transpose(0, 1, 3, 2, 4, 5)
    return _out_of_nhwc(blocks.reshape(n, height // size, width // size, size * size * depth), data_format)


@op(
    "tf.nn.depth_to_space", v1_names="tf.depth_to_space", type="DepthToSpace", tensors="input",
    v1="input block_size name data_format",
)  # fmt: skip
def depth_to_space(input: Any, block_size: Any, data_format: str = "NHWC") -> Any:  # noqa: A002
    """The channels of one place as a block of an image."""
    x, size = _in_nhwc(input, data_format), int(block_size)
    n, height, width, depth = x.shape
    blocks = x.reshape(n, height, width, size, size, depth // size**2).transpose(0, 1, 3, 2, 4, 5)
    return _out_of_nhwc(blocks.reshape(n, height * size, width * size, depth // size**2), data_format)


def blocks_to_batch(input: Any, block_shape: Sequence[int], paddings: Sequence[Sequence[int]]) -> Any:  # noqa: A002
    """Pad the axes after the first, and make the places within each block separate examples."""
    count = len(block_shape)
    rest = input.ndim - 1 - count
    x = jnp.pad(input, [(0, 0), *map(tuple, paddings), *[(0, 0)] * rest])
    shape = [x.shape[0]]
    for size, block in zip(x.shape[1 : 1 + count], block_shape, strict=True):
        shape += [size // block, block]
    x = x.reshape(*shape, *x.shape[1 + count :])
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count + 1, 2)
    x = x.transpose(*inner, 0, *outer, *range(2 * count + 1, x.ndim))
    return x.reshape(-1, *x.shape[count + 1 :])


def batch_to_blocks(input: Any, block_shape: Sequence[int], crops: Sequence[Sequence[int]]) -> Any:  # noqa: A002
    """Undo `blocks_to_batch`."""
    count = len(block_shape)
    x = input.reshape(*block_shape, -1, *input.shape[1:])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    x = x.transpose(*order, *range(2 * count + 1, x.ndim))
    sizes = [x.shape[2 * i + 1] * x.shape[2 * i + 2] for i in range(count)]
    x = x.reshape(x.shape[0], *sizes, *x.shape[2 * count + 1 :])
    if any(first < 0 or last < 0 or first + last > size for size, (first, last) in zip(sizes, crops, strict=True)):
        raise ArgumentError(f"crops must be non-negative and at most the sizes of the dimensions: {crops} of {sizes}")
    cuts = [slice(first, size - last) for size, (first, last) in zip(sizes, crops, strict=True)]
    return x[(slice(None), *cuts)]


def _pairs(value: Any, what: str) -> list[list[int]]:
    return np.reshape(sizes_of(value, what), (-1, 2)).tolist()


@op("tf.space_to_batch_nd", type="SpaceToBatchND", tensors="input block_shape paddings", shapes="block_shape paddings")
def space_to_batch_nd(input: Any, block_shape: Any, paddings: Any) -> Any:  # noqa: A002
    """The places within each block as separate examples."""
    return blocks_to_batch(input, sizes_of(block_shape, "the blocks"), _pairs(paddings, "the paddings"))


@op("tf.batch_to_space_nd", type="BatchToSpaceND", tensors="input block_shape crops", shapes="block_shape crops")
def batch_to_space_nd(input: Any, block_shape: Any, crops: Any) -> Any:  # noqa: A002
    """Examples as the places within each block."""
    return batch_to_blocks(input, sizes_of(block_shape, "the blocks"), _pairs(crops, "the crops"))


@op(v1_names="tf.space_to_batch tf.nn.space_to_batch", type="SpaceToBatch", tensors="input paddings", shapes="paddings")
def space_to_batch(input: Any, paddings: Any, block_size: Any) -> Any:  # noqa: A002
    """The places within each block of images as separate examples."""
    return blocks_to_batch(input, (int(block_size),) * 2, _pairs(paddings, "the paddings"))


@op(v1_names="tf.batch_to_space", type="BatchToSpace", tensors="input crops", shapes="crops")
def batch_to_space(input: Any, crops: Any, block_size: Any) -> Any:  # noqa: A002
    """Examples as the places within each block of images."""
    return batch_to_blocks(input, (int(block_size),) * 2, _pairs(crops, "the crops"))


@op(
    v1_names="tf.extract_image_patches",
    type="ExtractImagePatches",
    tensors="images",
    v1="images sizes strides rates padding name ksizes=sizes",
)
def extract_image_patches(images: Any, sizes: Any, strides: Any, rates: Any, padding: str) -> Any:
    """The patches of images, each as the channels of one place."""
    (height, width), steps, spread = (tuple(int(one) for one in given[1:3]) for given in (sizes, strides, rates))
    depth = images.shape[-1]
    patches = jax.lax.conv_general_dilated_patches(
        images, (height, width), steps, padding, rhs_dilation=spread, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    by_depth = patches.reshape(*patches.shape[:3], depth, height * width)
    return jnp.swapaxes(by_depth, -1, -2).reshape(patches.shape)
