"""Moments, and normalisation by them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of
from trainband.compat.ops.table import op


@op(
    "tf.math.l2_normalize tf.nn.l2_normalize",
    type="l2_normalize",
    tensors="x",
    v1="x axis epsilon name dim=axis",
)
def l2_normalize(x: Any, axis: Any = None, epsilon: Any = 1e-12) -> Any:
    """Scale to a norm of 1 along some axes."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=axes_of(axis), keepdims=True), epsilon))


@op(
    "tf.nn.lrn tf.nn.local_response_normalization",
    type="LRN",
    tensors="input",
)
def lrn(input: Any, depth_radius: Any = 5, bias: Any = 1.0, alpha: Any = 1.0, beta: Any = 0.5) -> Any:  # noqa: A002
    """Local response normalisation."""
    window = (1,) * (input.ndim - 1) + (2 * int(depth_radius) + 1,)
    total = jax.lax.reduce_window(input * input, 0.0, jax.lax.add, window, (1,) * input.ndim, "SAME")
    return input / (bias + alpha * total) ** beta


@op(
    "tf.nn.moments",
    type="moments",
    tensors="x",
    outputs=2,
    v1="x axes -shift name keep_dims=keepdims keepdims",
)
def moments(x: Any, axes: Any, keepdims: Any = False) -> Any:
    """The mean and the variance over some axes."""
    where = axes_of(axes)
    mean = jnp.mean(x, axis=where, keepdims=True)
    variance = jnp.mean(jnp.square(x - jax.lax.stop_gradient(mean)), axis=where, keepdims=bool(keepdims))
    return (mean if keepdims else jnp.squeeze(mean, where)), variance


@op(
    "tf.nn.batch_normalization",
    type="batchnorm",
    tensors="x mean variance offset scale",
    optional="offset scale",
    alike="x mean variance offset scale",
)
def batch_normalization(x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any) -> Any:
    """(x - mean) / sqrt(variance + epsilon), scaled and moved."""
    inverse = jax.lax.rsqrt(variance + jnp.asarray(variance_epsilon, x.dtype))
    inverse = inverse if scale is None else inverse * scale
    moved = -(mean * inverse)
    return x * inverse + (moved if offset is None else offset + moved)


@op(
    v1_names="tf.nn.fused_batch_norm",
    type="FusedBatchNorm",
    tensors="x scale offset mean variance",
    optional="mean variance",
    outputs=3,
)
def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
) -> Any:
    """(normalised images, their mean, their unbiased variance); by the given moments when not training."""
    if data_format != "NHWC":
        raise ArgumentError(f"fused_batch_norm: data_format must be NHWC, got {data_format}.")
    if not is_training:
        return batch_normalization(x, mean, variance, offset, scale, epsilon), mean, variance
    average, spread = moments(x, [0, 1, 2])
    return batch_normalization(x, average, spread, offset, scale, epsilon), average, unbiased(spread, x)


@op("", type="Unbiased", tensors="variance x")
def unbiased(variance: Any, x: Any) -> Any:
    """The variance of a sample of images as an estimate of that of all: times n / (n - 1)."""
    count = np.asarray(x.size // max(variance.size, 1), variance.dtype)
    return variance * count / np.maximum(count - 1, 1).astype(variance.dtype)
