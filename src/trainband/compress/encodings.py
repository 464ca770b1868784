"""Encodings: how one tensor is stored in fewer bytes, and its traceable decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from msgspec import Struct
from numpy.typing import NDArray

from trainband.model.inference import Tensors

Stored = Mapping[str, NDArray[Any]]
"""The arrays of a stored tensor, by name."""

INT8 = "int8"

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(np.int8)
"""The bits of every byte, lowest first."""


class Scaled(NamedTuple):
    """A tensor as 8-bit integers: `values * scale`, with one scale for each index along `axis`."""

    values: Any
    scale: Any
    axis: int

    def floats(self, dtype: Any) -> Any:
        """Returns the tensor; traceable."""
        shape = [-1 if i == self.axis else 1 for i in range(self.values.ndim)]
        return (self.values.astype(jnp.float32) * self.scale.reshape(shape)).astype(dtype)


class Plain(Struct, frozen=True, tag="plain"):
    """The values themselves, possibly in a narrower dtype.

    Attributes:
      shape, dtype: of the tensor.
      stored: the dtype in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    stored: str

    def decode(self, name: str, stored: Tensors) -> Any:
        """The tensor; traceable."""
        return jnp.asarray(stored[name]).astype(self.dtype)

    def parts(self, name: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each stored array."""
        return {name: (self.shape, self.stored)}


class Int8(Struct, frozen=True, tag=INT8):
    """`values` from -127 to 127 times a float32 `scale` for each index along `axis`, symmetric around 0."""

    shape: tuple[int, ...]
    dtype: str
    axis: int

    def scaled(self, name: str, stored: Tensors) -> Scaled:
        """The integers and their scales; traceable."""
        return Scaled(jnp.asarray(stored[f"{name}/values"]), jnp.asarray(stored[f"{name}/scale"]), self.axis)

    def decode(self, name: str, stored: Tensors) -> Any:
        """The tensor; traceable."""
        return self.scaled(name, stored).floats(self.dtype)

    def parts(self, name: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each stored array."""
        return {f"{name}/values": (self.shape, INT8), f"{name}/scale": ((self.shape[self.axis],), "float32")}


class Sparse(Struct, frozen=True, tag="sparse"):
    """A `bitmap` with a bit for each element, the lowest of each byte first, and the `values` where a bit is set.

    Attributes:
      shape, dtype: of the tensor.
      count: nonzero values; one more is stored, for elements after the last of them.
      stored: the dtype of the values; `int8` ones have a `scale` for each index along `axis`.
      axis: see `stored`.
    """

    shape: tuple[int, ...]
    dtype: str
    count: int
    stored: str
    axis: int = 0

    def dense(self, name: str, stored: Tensors) -> Any:
        """Returns the values, including the zeros; traceable.

        Running sums over bytes and within each give every element its index among the values: with look-ups and sums
        only, which other runtimes have, and without constants as large as the tensor, which converters would keep.
        """
        size = math.prod(self.shape)
        bits = _gathered(jnp.asarray(_BITS), jnp.asarray(stored[f"{name}/bitmap"]).astype(jnp.int32))
        counts = bits.astype(jnp.int32)
        before = lax.cumsum(counts, axis=1) - counts
        total = counts.sum(axis=1)
        place = ((lax.cumsum(total) - total)[:, None] + before).reshape(-1)[:size]
        values = jnp.asarray(stored[f"{name}/values"])
        found = _gathered(values, place)
        there = bits.reshape(-1)[:size].astype(values.dtype)
        return (found * there).reshape(self.shape)

    def scaled(self, name: str, stored: Tensors) -> Scaled:
        """The integers and their scales; traceable."""
        return Scaled(self.dense(name, stored), jnp.asarray(stored[f"{name}/scale"]), self.axis)

    def decode(self, name: str, stored: Tensors) -> Any:
        """The tensor; traceable."""
        if self.stored == INT8:
            return self.scaled(name, stored).floats(self.dtype)
        return self.dense(name, stored).astype(self.dtype)

    def parts(self, name: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each stored array."""
        parts: dict[str, tuple[tuple[int, ...], str]] = {
            f"{name}/bitmap": ((-(-math.prod(self.shape) // 8),), "uint8"),
            f"{name}/values": ((self.count + 1,), self.stored),
        }
        if self.stored == INT8:
            parts[f"{name}/scale"] = ((self.shape[self.axis],), "float32")
        return parts


class LowRank(Struct, frozen=True, tag="low-rank"):
    """Two factors, `u` of all axes but the last by the rank, and `v` of the rank by the last axis.

    Attributes:
      shape, dtype: of the tensor.
      u, v: how the factors are stored.
    """

    shape: tuple[int, ...]
    dtype: str
    u: Plain | Int8
    v: Plain | Int8

    @property
    def rank(self) -> int:
        """Rank of the product."""
        return self.u.shape[1]

    def decode(self, name: str, stored: Tensors) -> Any:
        """The tensor; traceable."""
        u, v = self.u.decode(f"{name}/u", stored), self.v.decode(f"{name}/v", stored)
        product = jnp.matmul(u, v, precision=lax.Precision.HIGHEST)
        return product.reshape(self.shape).astype(self.dtype)

    def parts(self, name: str) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each stored array."""
        return {**self.u.parts(f"{name}/u"), **self.v.parts(f"{name}/v")}


Encoding = Plain | Int8 | Sparse | LowRank


def _gathered(rows: Any, at: Any) -> Any:
    """Returns `rows[at]` for indices within bounds."""
    return rows.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


def nbytes_of(encoding: Encoding) -> int:
    """Returns the stored bytes."""
    parts = encoding.parts("").values()
    return sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in parts)


def describe(encoding: Encoding) -> str:
    """Describes an encoding in a few words."""
    match encoding:
        case Plain(stored=stored):
            return stored
        case Int8():
            return INT8
        case Sparse(count=count, shape=shape, stored=stored):
            return f"{stored}, {1 - count / max(1, math.prod(shape)):.0%} zeros"
        case LowRank() as low:
            return f"rank {low.rank}, {low.u.stored if isinstance(low.u, Plain) else INT8}"
