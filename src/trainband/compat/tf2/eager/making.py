"""Making tensors, and what makes the first values of variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trainband.compat.ops import random
from trainband.compat.ops.dtypes import array_of, as_dtype
from trainband.compat.ops.shapes import dims_of
from trainband.compat.ops.table import op_of
from trainband.compat.tf2.eager.execute import TENSORS, cast_to, convert, run
from trainband.compat.tf2.eager.seeds import set_seed as start_streams
from trainband.compat.tf2.eager.tensor import Tensor


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor of a value that is known, repeated to fill `shape` where it is one number.

    Raises:
      TypeError, ValueError: the value does not fit the dtype or the shape.
    """
    del name
    kind = None if dtype is None else as_dtype(dtype)
    if TENSORS.is_tensor(value):
        found = convert(value) if kind is None else cast_to(value, kind)
    else:
        found = Tensor(array_of(value, kind))
    sizes = dims_of(shape)
    if sizes is None or tuple(found.aval[0]) == sizes:
        return found
    array = np.asarray(found.array)
    if array.size == math.prod(one or 0 for one in sizes):
        return Tensor(array.reshape([one or 0 for one in sizes]))
    if array.size != 1:
        raise TypeError(f"Eager execution of tf.constant with unsupported shape. Tensor {array} (converted from "
                        f"{value!r}) has {array.size} elements, but got `shape` {sizes}.")  # fmt: skip
    return Tensor(np.broadcast_to(array.reshape(()), [one or 0 for one in sizes]))


def convert_to_tensor(value: Any, dtype: Any = None, dtype_hint: Any = None, name: str | None = None) -> Tensor:
    """A tensor of anything.

    Raises:
      TypeError, ValueError: the value cannot become one, or not one of this dtype.
    """
    del name
    if dtype is None and dtype_hint is not None and not TENSORS.is_tensor(value):
        try:
            return convert(value, as_dtype(dtype_hint))
        except (TypeError, ValueError):  # it is only a hint
            return convert(value)
    return convert(value, None if dtype is None else as_dtype(dtype))


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor or a variable."""
    return TENSORS.is_tensor(value)


class _Initializer:
    """Makes first values: called with a shape and a dtype."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, shape: Any, dtype: Any = "float32", **_: Any) -> Tensor:
        found: Tensor = self._make(dims_of(shape), as_dtype(dtype))
        return found


def constant_initializer(value: Any = 0) -> _Initializer:
    """That of a value."""
    return _Initializer(lambda shape, dtype: constant(value, dtype, shape))


def zeros_initializer() -> _Initializer:
    """That of zeros."""
    return _Initializer(lambda shape, dtype: Tensor(np.zeros(shape, dtype.numpy)))


def ones_initializer() -> _Initializer:
    """That of ones."""
    return _Initializer(lambda shape, dtype: Tensor(np.ones(shape, dtype.numpy)))


def random_normal_initializer(mean: float = 0.0, stddev: float = 0.05, seed: int | None = None) -> _Initializer:
    """That of a normal distribution."""
    draw = op_of(random.random_normal)
    return _Initializer(
        lambda shape, dtype: run(draw, {"shape": shape, "mean": mean, "stddev": stddev, "dtype": dtype}, seed)
    )


def random_uniform_initializer(minval: float = -0.05, maxval: float = 0.05, seed: int | None = None) -> _Initializer:
    """That of a uniform distribution."""
    draw = op_of(random.random_uniform)
    return _Initializer(
        lambda shape, dtype: run(draw, {"shape": shape, "minval": minval, "maxval": maxval, "dtype": dtype}, seed)
    )


class Generator:
    """Random numbers of a stream of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = int(seed)

    @classmethod
    def from_seed(cls, seed: int, alg: Any = None) -> Generator:
        """One that always draws the same."""
        del alg
        return cls(seed)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """One that draws others in each process."""
        import secrets

        del alg
        return cls(secrets.randbits(31))

    def normal(self, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = "float32") -> Tensor:
        """From a normal distribution."""
        values = {"shape": shape, "mean": mean, "stddev": stddev, "dtype": as_dtype(dtype)}
        found: Tensor = run(op_of(random.random_normal), values, self._seed)
        return found

    def uniform(self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = "float32") -> Tensor:
        """From a uniform distribution."""
        values = {"shape": shape, "minval": minval, "maxval": maxval, "dtype": as_dtype(dtype)}
        found: Tensor = run(op_of(random.random_uniform), values, self._seed)
        return found


_global: list[Generator] = []


def get_global_generator() -> Generator:
    """That of the process."""
    if not _global:
        _global.append(Generator.from_non_deterministic_state())
    return _global[0]


def set_seed(seed: int) -> None:
    """Begin the streams of all random operations anew."""
    start_streams(seed)
