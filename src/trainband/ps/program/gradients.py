"""A ps's operations on blocks besides the update: means, compensation, dtypes, checks that they are finite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.model.layout import ShardLayout


def weighted_mean(gradients: Sequence[Sequence[NDArray[Any]]], examples: Sequence[int]) -> tuple[NDArray[Any], ...]:
    """The mean of gradients, each weighted by its number of examples.

    Summed in the order given, in float32 at least, by one compiled program for each number of gradients: so the
    same gradients in the same order give the same bits.
    """
    weights = np.array(shares_of(examples), np.float64)
    blocks = _weighted_mean(tuple(tuple(blocks) for blocks in gradients), weights)
    return tuple(np.asarray(block) for block in blocks)


def shares_of(examples: Sequence[int]) -> list[float]:
    """The share of each gradient in their mean."""
    total = sum(examples)
    return [count / total if total else 1 / len(examples) for count in examples]


@jax.jit
def _weighted_mean(gradients: tuple[tuple[jax.Array, ...], ...], weights: jax.Array) -> list[jax.Array]:
    means = []
    for pushes in zip(*gradients, strict=True):
        if not jnp.issubdtype(pushes[0].dtype, jnp.floating):
            means.append(pushes[0])  # a count in the model state: that of the worker with the lowest number
            continue
        wide = jnp.promote_types(pushes[0].dtype, jnp.float32)
        total = pushes[0].astype(wide) * weights[0].astype(wide)
        for i, push in enumerate(pushes[1:], start=1):
            total = total + push.astype(wide) * weights[i].astype(wide)
        means.append(total.astype(pushes[0].dtype))
    return means


def compensated(
    gradient: Sequence[NDArray[Any]], now: Sequence[Any], then: Sequence[Any], factor: float
) -> list[NDArray[Any]]:
    """G + factor * g * g * (now - then), block by block; see `Async.delay_compensation`."""
    blocks = _compensate(tuple(gradient), tuple(now), tuple(then), np.float32(factor))
    return [np.asarray(block) for block in blocks]


@jax.jit
def _compensate(
    gradient: tuple[jax.Array, ...], now: tuple[jax.Array, ...], then: tuple[jax.Array, ...], factor: jax.Array
) -> list[jax.Array]:
    return [
        (g + factor * g * g * (w - w_then)).astype(g.dtype) for g, w, w_then in zip(gradient, now, then, strict=True)
    ]


def widened(blocks: Sequence[NDArray[Any]], dtypes: Sequence[str]) -> tuple[NDArray[Any], ...]:
    """Blocks that were sent in a narrower dtype, in their own dtype."""
    return tuple(np.asarray(block) for block in _widened(tuple(blocks), tuple(dtypes)))


@partial(jax.jit, static_argnums=1)
def _widened(blocks: tuple[jax.Array, ...], dtypes: tuple[str, ...]) -> list[jax.Array]:
    return [block.astype(dtype) for block, dtype in zip(blocks, dtypes, strict=True)]


def narrowed(blocks: tuple[Any, ...], spare: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Blocks in the dtypes of `spare`, whose memory it uses up.

    Measured for 100 MB of float32: 9 ms; NumPy takes 25 for bfloat16 and 240 for float16.
    """
    done: tuple[jax.Array, ...] = jax.block_until_ready(_narrowed(blocks, spare))
    return done


@partial(jax.jit, donate_argnums=1, keep_unused=True)
def _narrowed(blocks: tuple[jax.Array, ...], spare: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(block.astype(like.dtype) for block, like in zip(blocks, spare, strict=True))


def all_finite(blocks: Sequence[NDArray[Any]]) -> bool:
    """Whether no element is NaN or infinite. Measured: 6 us for 80,000 float32."""
    for block in blocks:
        if block.dtype.kind == "f" and not bool(np.isfinite(block).all()):
            return False
        if block.dtype.kind == "V" and not bool(_finite_any(block)):  # bfloat16: NumPy has no arithmetic for it
            return False
    return True


_finite_any = jax.jit(lambda block: jnp.isfinite(block).all())


def not_finite(layout: ShardLayout, blocks: Sequence[NDArray[Any]]) -> list[str]:
    """The variables that hold NaN or infinity."""
    return [
        piece.variable.name
        for piece, value in zip(layout.slices, layout.unpack(blocks), strict=True)
        if not np.isfinite(np.asarray(value, np.float64)).all()
    ]
