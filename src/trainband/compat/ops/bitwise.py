"""Operations on the bits of whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops.arrays import numpy_or_jax
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
