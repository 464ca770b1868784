"""Operations on the bits of whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, numpy_or_jax
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.table import op


def _bitwise(name: str, type_: str, function: str = "") -> Callable[[Any, Any], Any]:
    def compute(x: Any, y: Any) -> Any:
        return getattr(numpy_or_jax(x, y), function or name)(x, y)

    compute.__name__ = name
    compute.__doc__ = f"TensorFlow's {type_}, element by element, with broadcasting."
    kinds = {"x": "int", "y": "int"}
    return op(f"tf.bitwise.{name}", type=type_, tensors="x y", alike="x y", kinds=kinds)(compute)


bitwise_and = _bitwise("bitwise_and", "BitwiseAnd")
bitwise_or = _bitwise("bitwise_or", "BitwiseOr")
bitwise_xor = _bitwise("bitwise_xor", "BitwiseXor")
left_shift = _bitwise("left_shift", "LeftShift")
right_shift = _bitwise("right_shift", "RightShift")


@op("tf.bitwise.invert", type="Invert", tensors="x", kinds={"x": "int"})
def invert(x: Any) -> Any:
    """All bits of whole numbers changed."""
    return ~x


@op("tf.bitcast", type="Bitcast", tensors="input", flat=True)
def bitcast(input: Any, type: Any) -> Any:  # noqa: A002 - TensorFlow's names
    """The same bytes as numbers of another dtype; the last axis makes up for a difference in size."""
    kind = as_dtype(type).numpy
    times = input.dtype.itemsize / kind.itemsize
    if times < 1 and (not input.shape or input.shape[-1] != round(1 / times)):
        raise ArgumentError(
            f"Cannot bitcast {input.dtype} of shape {input.shape} to {kind}: the last dimension does not fit"
        )
    if isinstance(input, np.ndarray | np.generic):
        whole = np.ascontiguousarray(input).reshape(-1)
        return whole.view(kind).reshape(*(input.shape if times >= 1 else input.shape[:-1]), *_added(times))
    if np.issubdtype(input.dtype, np.complexfloating):
        parts = jnp.stack([input.real, input.imag], -1)
        found = jax.lax.bitcast_convert_type(parts, kind)
        return found.reshape(*input.shape, *_added(times))
    if np.issubdtype(kind, np.complexfloating):
        parts = bitcast(input, np.empty(0, kind).real.dtype)
        parts = parts.reshape(*(input.shape if times >= 1 else input.shape[:-1]), -1, 2)
        found = jax.lax.complex(parts[..., 0], parts[..., 1])
        return found if times > 1 else found[..., 0]
    return jax.lax.bitcast_convert_type(input, kind)


def _added(times: float) -> tuple[int, ...]:
    return (int(times),) if times > 1 else ()
