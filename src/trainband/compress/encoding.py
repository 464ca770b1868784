"""Encoding: stores one tensor in fewer bytes, on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.compress.encodings import INT8, Encoding, Int8, LowRank, Plain, Sparse, nbytes_of
from trainband.errors import ModelError

LEVELS = 127
"""The largest 8-bit integer of a weight: with -128 the range would not be symmetric."""

Array = NDArray[Any]
Arrays = Mapping[str, Array]


def quantised(values: Array, axis: int) -> tuple[Array, Array]:
    """Returns 8-bit integers and float32 scales: for each index along `axis`, the largest magnitude becomes 127.

    Halves are rounded to even. A channel of zeros has the scale 1.
    """
    others = tuple(i for i in range(values.ndim) if i != axis)
    exact = values.astype(np.float64)
    largest = np.abs(exact).max(axis=others, initial=0.0)
    scale = np.where(largest > 0, largest / LEVELS, 1.0).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1.0))  # a largest magnitude that float32 rounds to 0
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    integers = np.clip(np.rint(exact / scale.astype(np.float64).reshape(shape)), -LEVELS, LEVELS)
    return integers.astype(np.int8), scale


def plain(name: str, values: Array, stored: str | None = None) -> tuple[Plain, Arrays]:
    """Returns the values, converted to another dtype if one is given.

    Raises:
      ModelError: the dtype cannot hold a value.
    """
    dtype = values.dtype.name
    kept = values
    if stored is not None and stored != dtype:
        with np.errstate(over="ignore"):
            kept = values.astype(jnp.dtype(stored))
        if not np.isfinite(kept.astype(np.float32)).all():
            raise ModelError(
                f"{name} has values up to {np.abs(values).max():.3g}, which {stored} cannot hold; use bfloat16."
            )
    return Plain(values.shape, dtype, kept.dtype.name), {name: kept}


def int8(name: str, values: Array, axis: int) -> tuple[Int8, Arrays]:
    """Returns the values as 8-bit integers."""
    integers, scale = quantised(values, axis)
    return Int8(values.shape, values.dtype.name, axis), {f"{name}/values": integers, f"{name}/scale": scale}


def without_zeros(name: str, encoding: Encoding, stored: Arrays) -> tuple[Encoding, Arrays]:
    """Returns the same values as a bitmap and the nonzero ones, if that is smaller."""
    match encoding:
        case Plain(shape=shape, dtype=dtype, stored=kind):
            dense, axis, rest = stored[name], 0, {}
        case Int8(shape=shape, dtype=dtype, axis=axis):
            dense, kind, rest = stored[f"{name}/values"], INT8, {f"{name}/scale": stored[f"{name}/scale"]}
        case _:
            return encoding, stored
    flat = dense.reshape(-1)
    there = flat != 0
    values = np.append(flat[there], np.zeros(1, flat.dtype))
    sparse = Sparse(shape, dtype, len(values) - 1, kind, axis)
    if nbytes_of(sparse) >= nbytes_of(encoding):
        return encoding, stored
    bitmap = np.packbits(there, bitorder="little")
    return sparse, {f"{name}/bitmap": bitmap, f"{name}/values": values, **rest}


def low_rank(
    name: str, values: Array, rank: float, stored: str | None, *, integers: bool
) -> tuple[LowRank, Arrays] | None:
    """Returns the best approximation of a rank, by singular values; `None` if it would not be smaller.

    Args:
      name: of the tensor.
      values: viewed as a matrix of all axes but the last by the last.
      rank: the rank; or, below 1, the share of the squares of all values that it must keep.
      stored: the dtype of the factors; the tensor's own when `None`.
      integers: whether the factors are 8-bit integers, with a scale for each column of `u` and each row of `v`.
    """
    rows, columns = math.prod(values.shape[:-1]), values.shape[-1]
    u, singular, v = np.linalg.svd(values.reshape(rows, columns).astype(np.float64), full_matrices=False)
    if rank < 1:
        energy = np.cumsum(singular**2) / max(float((singular**2).sum()), np.finfo(np.float64).tiny)
        kept = int(np.searchsorted(energy, rank) + 1)
    else:
        kept = int(rank)
    if kept * (rows + columns) >= rows * columns:
        return None
    root = np.sqrt(singular[:kept])
    factors = {"u": u[:, :kept] * root, "v": root[:, None] * v[:kept]}
    parts: dict[str, Plain | Int8] = {}
    arrays: dict[str, Array] = {}
    for part, axis in (("u", 1), ("v", 0)):
        factor = factors[part].astype(values.dtype)
        label = f"{name}/{part}"
        encoding, made = int8(label, factor, axis) if integers else plain(label, factor, stored)
        parts[part] = encoding
        arrays |= made
    return LowRank(values.shape, values.dtype.name, parts["u"], parts["v"]), arrays


def pruned(values: Array, share: float) -> Array:
    """Returns the values with this share of them, the smallest, set to 0."""
    flat = np.abs(values).reshape(-1).astype(np.float32)
    count = round(share * flat.size)
    made = values.copy()
    made.reshape(-1)[np.argsort(flat, kind="stable")[:count]] = 0
    return made
