"""Operations run at once, on arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from trainband.compat.ops.binding import converted
from trainband.compat.ops.dtypes import DType, array_of
from trainband.compat.ops.signature import Signature
from trainband.compat.ops.table import Op


class Arrays:
    """NumPy's and JAX's arrays as tensors: see `binding.Tensors`."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is an array."""
        return isinstance(value, np.ndarray | np.generic | jax.Array | jax.core.Tracer)

    def convert(self, value: Any, dtype: DType | None) -> Any:
        """An array with the value of anything."""
        if isinstance(value, list | tuple) and any(map(self.is_tensor, value)):
            value = np.stack([self.convert(one, dtype) for one in value])
        if not isinstance(value, jax.Array | jax.core.Tracer):
            return array_of(value, dtype)
        if dtype is not None and value.dtype != dtype.numpy:
            raise ValueError(f"an array of {dtype.name} is needed, got one of {value.dtype}.")
        return value

    def known(self, value: Any, what: str) -> Any:
        """The value itself, as NumPy's."""
        if isinstance(value, jax.core.Tracer):
            raise ValueError(f"{what} must be known before anything is traced, got {value}.")
        return np.asarray(value)


ARRAYS = Arrays()


def run(op: Op, *arguments: Any, key: Any = None, v1: bool = False, **keywords: Any) -> Any:
    """The result of an operation.

    Args:
      key: for the random numbers of one that draws some.
      v1: whether the arguments are given as TensorFlow 1's signature has them.
    """
    values, _ = Signature.parse(op, op.v1 if v1 else "").bind(arguments, keywords)
    return op.call(converted(op, values, ARRAYS), key)
