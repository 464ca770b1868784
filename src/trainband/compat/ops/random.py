"""Random operations: TensorFlow's distributions and shapes, JAX's numbers; the same ones for the same key."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, is_computed, sizes_of
from trainband.compat.ops.dtypes import as_dtype, float32, int64
from trainband.compat.ops.shapes import dims_of
from trainband.compat.ops.table import op

_WHAT = "the shape of random numbers"
_TRUNCATED_STDDEV = 0.87962566103423978
"""The standard deviation of a unit normal distribution truncated at 2; TensorFlow divides by it."""


def _drawn(draw: Callable[..., Any], key: Any, shape: Sequence[int], dtype: Any, **bounds: Any) -> Any:
    """Numbers that `draw` makes, such as `jax.random.uniform`.

    Drawn in a row, they are those of any other shape, and XLA takes a sixth of the time to compile it.
    """
    return draw(key, shape=(math.prod(shape),), dtype=dtype, **bounds).reshape(tuple(shape))


def _normals(draw: Callable[..., Any], key: Any, shape: Sequence[int], dtype: Any, **bounds: Any) -> Any:
    """Normally distributed numbers, those of 16 bits rounded from 32, as in TensorFlow.

    JAX makes them of as many random bits as the dtype's mantissa has: of float16 there would be 1,024 different ones.
    """
    wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
    return _drawn(draw, key, shape, wide, **bounds).astype(dtype)


@op(
    "tf.random.normal",
    v1_names="tf.random_normal",
    type="random_normal",
    tensors="shape mean stddev",
    shapes="shape",
    like={"mean": "dtype", "stddev": "dtype"},
    random=True,
)
def random_normal(key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32) -> Any:
    """Draw from a normal distribution."""
    return _normals(jax.random.normal, key, sizes_of(shape, _WHAT), as_dtype(dtype).numpy) * stddev + mean


@op(
    "tf.random.truncated_normal",
    v1_names="tf.truncated_normal",
    type="truncated_normal",
    tensors="shape mean stddev",
    shapes="shape",
    like={"mean": "dtype", "stddev": "dtype"},
    random=True,
)
def truncated_normal(key: Any, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = float32) -> Any:
    """Draw from a normal distribution truncated at two standard deviations."""
    kind = as_dtype(dtype).numpy
    drawn = _normals(jax.random.truncated_normal, key, sizes_of(shape, _WHAT), kind, lower=-2.0, upper=2.0)
    return drawn * stddev + mean


@op(
    "tf.random.uniform",
    v1_names="tf.random_uniform",
    type="random_uniform",
    tensors="shape minval maxval",
    optional="maxval",
    shapes="shape",
    like={"minval": "dtype", "maxval": "dtype"},
    random=True,
)
def random_uniform(key: Any, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = float32) -> Any:
    """Draw uniformly from `minval` up to below `maxval`, which integers require."""
    kind = as_dtype(dtype)
    if kind.is_integer:
        if maxval is None:
            raise ArgumentError(f"Must specify maxval for integer dtype {kind.name}")
        return _drawn(jax.random.randint, key, sizes_of(shape, _WHAT), kind.numpy, minval=minval, maxval=maxval)
    most = np.ones((), kind.numpy) if maxval is None else maxval
    return _drawn(jax.random.uniform, key, sizes_of(shape, _WHAT), kind.numpy) * (most - minval) + minval


@op(
    "tf.random.shuffle",
    v1_names="tf.random_shuffle",
    type="RandomShuffle",
    tensors="value",
    keeps_shape=True,
    random=True,
)
def random_shuffle(key: Any, value: Any) -> Any:
    """Shuffle the rows."""
    return jax.random.permutation(key, value, axis=0)


@op(
    v1_names="tf.random.multinomial tf.multinomial",
    type="Multinomial",
    tensors="logits",
    random=True,
    v1="logits num_samples seed name output_dtype",
)
def multinomial(key: Any, logits: Any, num_samples: Any, output_dtype: Any = int64) -> Any:
    """Draw `num_samples` classes for each row of unnormalised log probabilities."""
    drawn = jax.random.categorical(key, logits[:, None, :], axis=-1, shape=(logits.shape[0], int(num_samples)))
    return drawn.astype(as_dtype(output_dtype).numpy)


def _keeps_all(x: Any, keep_prob: Any, noise_shape: Any, rate: Any) -> bool:  # noqa: ARG001
    """Whether it is known that nothing is dropped."""
    if keep_prob is not None:
        return keep_prob.value is not None and float(keep_prob.value) == 1
    return rate is not None and rate.value is not None and float(rate.value) == 0


@op(
    v1_names="tf.nn.dropout",
    type="dropout",
    tensors="x keep_prob rate",
    optional="keep_prob rate",
    keeps_shape=True,
    like={"keep_prob": "x", "rate": "x"},
    random=True,
    unchanged=_keeps_all,
    v1="x keep_prob noise_shape seed name rate",
)
def dropout(key: Any, x: Any, keep_prob: Any = None, noise_shape: Any = None, rate: Any = None) -> Any:
    """Zeroes each element with the probability `rate`, and scales the others up so that the mean stays.

    `keep_prob` is the probability of the others: one of the two must be given.
    """
    if (keep_prob is None) == (rate is None):
        raise ArgumentError("Only one of keep_prob and rate can be given, and one must be.")
    share = keep_prob if rate is None else 1.0 - rate
    if not is_computed(share) and not 0 < float(share) <= 1:
        raise ArgumentError(f"keep_prob must be a scalar tensor or a float in the range (0, 1], got {float(share):g}")
    shape = x.shape
    if noise_shape is not None:
        shape = tuple(n if one is None else one for n, one in zip(shape, dims_of(noise_shape) or (), strict=True))
    kept = _drawn(jax.random.uniform, key, shape, x.dtype) < share
    return jnp.where(kept, x / share, 0)


@op(
    v1_names="tf.random_gamma tf.random.gamma",
    type="random_gamma",
    tensors="size alpha beta",
    optional="beta",
    shapes="size",
    like={"alpha": "dtype", "beta": "dtype"},
    random=True,
    v1="shape=size alpha beta dtype seed name",
)
def random_gamma(key: Any, size: Any, alpha: Any, beta: Any = None, dtype: Any = float32) -> Any:
    """Draw from each of some gamma distributions as many numbers as a shape has."""
    kind, rate = as_dtype(dtype).numpy, jnp.ones((), alpha.dtype) if beta is None else beta
    sizes = (*sizes_of(size, _WHAT), *np.broadcast_shapes(np.shape(alpha), np.shape(rate)))
    wide = np.float32 if kind.itemsize == 2 else kind  # see `_normals`
    return (jax.random.gamma(key, alpha.astype(wide), sizes, wide) / rate.astype(wide)).astype(kind)


@op(
    v1_names="tf.random_poisson tf.random.poisson",
    type="random_poisson_v2",
    tensors="lam size",
    shapes="size",
    random=True,
    v1="lam shape=size dtype seed name",
    kinds={"lam": "int float"},
)
def random_poisson(key: Any, lam: Any, size: Any, dtype: Any = float32) -> Any:
    """Draw from each of some Poisson distributions as many numbers as a shape has."""
    sizes = (*sizes_of(size, _WHAT), *np.shape(lam))
    return jax.random.poisson(key, jnp.broadcast_to(lam, sizes), sizes).astype(as_dtype(dtype).numpy)


@op(
    "",
    type="parameterized_truncated_normal",
    tensors="shape means stddevs minvals maxvals",
    shapes="shape",
    like={"means": "dtype", "stddevs": "dtype", "minvals": "dtype", "maxvals": "dtype"},
    random=True,
    v1="shape means stddevs minvals maxvals dtype seed name",
)
def parameterized_truncated_normal(
    key: Any,
    shape: Any,
    means: Any = 0.0,
    stddevs: Any = 1.0,
    minvals: Any = -2.0,
    maxvals: Any = 2.0,
    dtype: Any = float32,
) -> Any:
    """Draw from normal distributions, one for each row or one for all, between two limits."""
    sizes = sizes_of(shape, _WHAT)
    parts = [jnp.reshape(one, (-1,) + (1,) * (len(sizes) - 1)) for one in (means, stddevs, minvals, maxvals)]
    mean, deviation, low, high = parts
    kind = as_dtype(dtype).numpy
    wide = np.float32 if kind.itemsize == 2 else kind  # see `_normals`
    limits = ((low - mean) / deviation).astype(wide), ((high - mean) / deviation).astype(wide)
    return jax.random.truncated_normal(key, *limits, sizes, wide).astype(kind) * deviation + mean


@op("", type="orthogonal", tensors="shape", shapes="shape", random=True)
def random_orthogonal(key: Any, shape: Any, gain: Any = 1.0, dtype: Any = float32) -> Any:
    """A random matrix with orthonormal rows or columns; of more axes, the last are the columns."""
    sizes = sizes_of(shape, _WHAT)
    rows, columns = int(np.prod(sizes[:-1])), sizes[-1]
    flat = _normals(jax.random.normal, key, (max(rows, columns), min(rows, columns)), as_dtype(dtype).numpy)
    q, r = jnp.linalg.qr(flat)
    q = q * jnp.sign(jnp.diagonal(r))
    return gain * (q.T if rows < columns else q).reshape(sizes)


def fans(sizes: Sequence[int]) -> tuple[float, float]:
    """Return the number of inputs and of outputs of a variable of this shape."""
    if len(sizes) < 1:
        return 1.0, 1.0
    if len(sizes) == 1:
        return float(sizes[0]), float(sizes[0])
    field = float(np.prod(sizes[:-2], dtype=np.float64)) if len(sizes) > 2 else 1.0
    return sizes[-2] * field, sizes[-1] * field


def scaled_variance(sizes: Sequence[int], scale: float, mode: str) -> float:
    """Return the variance of initial values: `scale` divided by the number of inputs, of outputs, or their mean."""
    fan_in, fan_out = fans(sizes)
    count = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    return scale / max(1.0, count)


def truncated_stddev(variance: float) -> float:
    """Return the standard deviation before truncation at 2 that leaves this variance."""
    return math.sqrt(variance) / _TRUNCATED_STDDEV


def unit_scaling_limit(sizes: Sequence[int], factor: float) -> float:
    """Return the limit of uniformly distributed initial values that keep the scale of the inputs."""
    return math.sqrt(3 / max(1.0, float(np.prod(sizes[:-1], dtype=np.float64)))) * factor
