"""Pooling, and morphology, which is alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import is_floating
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.table import op

_LAYOUTS = {3: "NWC", 4: "NHWC", 5: "NDHWC"}


def _whole(value: Any, layout: str) -> tuple[int, ...]:
    """Window sizes or strides for every axis, given for all, for those of the image, or as one number."""
    sizes = [int(one) for one in np.ravel(value)]
    if len(sizes) == len(layout):
        return tuple(sizes)
    rest = iter(sizes * (len(layout) - 2) if len(sizes) == 1 else sizes)
    return tuple(1 if letter in "NC" else next(rest) for letter in layout)


def _largest(x: Any, window: Any, steps: Any, padding: Any, spread: Any) -> Any:
    """As TensorFlow's kernel on a CPU: it begins with the least finite number, and NaN is greater than none."""
    first = -np.inf if is_floating(x) else np.iinfo(x.dtype).min
    if is_floating(x):
        least = as_dtype(x.dtype).min
        x = jnp.where(x > least, x, least)
    return jax.lax.reduce_window(x, np.asarray(first, x.dtype), jax.lax.max, window, steps, padding, None, spread)


def _average(x: Any, window: Any, steps: Any, padding: Any, spread: Any) -> Any:
    """At the edges, the mean of what lies inside the image."""

    def add(values: Any) -> Any:
        return jax.lax.reduce_window(
            values, np.asarray(0, x.dtype), jax.lax.add, window, steps, padding, None, spread
        )  # fmt: skip

    return add(x) / add(
        jnp.ones([size if over > 1 else 1 for size, over in zip(x.shape, window, strict=True)], x.dtype)
    )


_OF = {"MAX": _largest, "AVG": _average}


def _padded(padding: Any) -> Any:
    return padding if isinstance(padding, str) else [tuple(int(one) for one in pair) for pair in padding]


def _pooling(name: str, type_: str, kind: str, axes: int, v1_names: str, v1: str) -> Callable[..., Any]:
    usual = _LAYOUTS[axes + 2]

    def compute(value: Any, ksize: Any, strides: Any, padding: Any = "VALID", data_format: str = usual) -> Any:
        layout = data_format or usual
        window, steps = _whole(ksize, layout), _whole(strides, layout)
        return _OF[kind](value, window, steps, _padded(padding), (1,) * value.ndim)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {type_}: one number for each window."
    return op(f"tf.nn.{name}", v1_names=v1_names, type=type_, tensors="value", v1=v1)(compute)


_OLD = "value ksize strides padding data_format name input=value"
_NEW = "input=value ksize strides padding data_format name"
max_pool1d = _pooling("max_pool1d", "MaxPool", "MAX", 1, "", _NEW)
max_pool = _pooling("max_pool", "MaxPool", "MAX", 2, "tf.nn.max_pool2d", _OLD)
max_pool3d = _pooling("max_pool3d", "MaxPool3D", "MAX", 3, "", _NEW)
avg_pool1d = _pooling("avg_pool1d", "AvgPool", "AVG", 1, "", _NEW)
avg_pool = _pooling("avg_pool", "AvgPool", "AVG", 2, "tf.nn.avg_pool2d", _OLD)
avg_pool3d = _pooling("avg_pool3d", "AvgPool3D", "AVG", 3, "", _NEW)


@op(
    "tf.nn.pool", type="pool", tensors="input",
    v1="input window_shape pooling_type padding dilation_rate=dilations strides name data_format dilations",
)  # fmt: skip
def pool(
    input: Any, window_shape: Any, pooling_type: str, padding: Any = "VALID", strides: Any = None,  # noqa: A002
    data_format: Any = None, dilations: Any = None,
) -> Any:  # fmt: skip
    """The largest, or the mean, of each window over one, two or three axes."""
    layout = data_format or _LAYOUTS[input.ndim]
    window, steps, spread = (
        _whole(1 if one is None else one, layout) for one in (window_shape, strides, dilations)
    )  # fmt: skip
    return _OF[pooling_type.upper()](input, window, steps, _padded(padding), spread)


def _places(
    x: Any, window: tuple[int, int], steps: tuple[int, int], spread: tuple[int, int], padding: str, fill: Any
) -> Iterator[tuple[tuple[int, int], Any]]:
    """Of each place of a window: where it is, and the elements of all windows that are there."""
    reach = [(size - 1) * rate + 1 for size, rate in zip(window, spread, strict=True)]
    edges = jax.lax.padtype_to_pads(x.shape[1:3], reach, steps, padding)
    counts = [
        (size + sum(pair) - over) // step + 1
        for size, pair, over, step in zip(x.shape[1:3], edges, reach, steps, strict=True)
    ]
    whole = jnp.pad(x, [(0, 0), *edges, (0, 0)], constant_values=fill)
    for place in itertools.product(range(window[0]), range(window[1])):
        cut = [
            slice(at * rate, at * rate + (count - 1) * step + 1, step)
            for at, rate, count, step in zip(place, spread, counts, steps, strict=True)
        ]
        yield place, whole[:, cut[0], cut[1]]


@op(
    "tf.nn.max_pool_with_argmax", type="MaxPoolWithArgmax", tensors="input", outputs=2,
    v1="input ksize strides padding -data_format Targmax=output_dtype name output_dtype include_batch_in_index",
)  # fmt: skip
def max_pool_with_argmax(
    input: Any, ksize: Any, strides: Any, padding: str, output_dtype: Any = None, include_batch_in_index: bool = False,  # noqa: A002
) -> Any:  # fmt: skip
    """The largest of each window, and its place in the image as one number."""
    n, height, width, depth = input.shape
    numbers = np.arange(height * width * depth, dtype=np.int64).reshape(1, height, width, depth)
    if include_batch_in_index:
        numbers = np.arange(n * height * width * depth, dtype=np.int64).reshape(input.shape)
    window, steps = _whole(ksize, "NHWC")[1:3], _whole(strides, "NHWC")[1:3]
    values = _places(input, window, steps, (1, 1), padding, -np.inf)  # type: ignore[arg-type]
    places = _places(numbers, window, steps, (1, 1), padding, 0)  # type: ignore[arg-type]
    best: Any = None
    where: Any = None
    for (_, value), (_, place) in zip(values, places, strict=True):
        more = value > (-np.inf if best is None else best)
        best = value if best is None else jnp.where(more, value, best)
        where = jnp.broadcast_to(place, value.shape) if where is None else jnp.where(more, place, where)
    kind = np.int64 if output_dtype is None else np.dtype(str(getattr(output_dtype, "name", output_dtype)))
    return best, where.astype(kind)


def _dilated(x: Any, kernel: Any, strides: Any, rates: Any, padding: str) -> Any:
    steps, spread = _whole(strides, "NHWC")[1:3], _whole(rates, "NHWC")[1:3]
    window = (int(kernel.shape[0]), int(kernel.shape[1]))
    best = None
    for (row, column), value in _places(x, window, steps, spread, padding, -np.inf):  # type: ignore[arg-type]
        here = value + kernel[row, column]
        best = here if best is None else jnp.where(here > best, here, best)
    return best


@op(
    "tf.nn.dilation2d", type="Dilation2D", tensors="input filter", alike="input filter",
    v1="input filter strides rates padding name filters=filter dilations=rates",
)  # fmt: skip
def dilation2d(input: Any, filter: Any, strides: Any, rates: Any, padding: str) -> Any:  # noqa: A002
    """The largest sum of each window and the filter, of each channel."""
    return _dilated(input, filter, strides, rates, padding)


@op("tf.nn.erosion2d", type="Erosion2D", tensors="value kernel", alike="value kernel")
def erosion2d(value: Any, kernel: Any, strides: Any, rates: Any, padding: str) -> Any:
    """The smallest difference of each window and the reversed filter, of each channel."""
    return -_dilated(-value, kernel[::-1, ::-1], strides, rates, padding)
