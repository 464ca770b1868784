"""Moments, and normalisation by them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axes_of
from trainband.compat.ops.reductions import reduce_mean
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
    mean = reduce_mean(x, where, True)
    variance = reduce_mean(jnp.square(x - jax.lax.stop_gradient(mean)), where, keepdims)
    return (mean if keepdims else jnp.squeeze(mean, where)), variance


@op(
    "tf.nn.weighted_moments",
    type="weighted_moments",
    tensors="x frequency_weights",
    outputs=2,
    v1="x axes frequency_weights name keep_dims=keepdims keepdims",
)
def weighted_moments(x: Any, axes: Any, frequency_weights: Any, keepdims: Any = False) -> Any:
    """The mean and the variance over some axes, where each element counts as often as its weight says."""
    where = axes_of(axes)
    weights = jnp.broadcast_to(
        frequency_weights.astype(x.dtype), jnp.broadcast_shapes(frequency_weights.shape, x.shape)
    )
    total = jnp.sum(weights, where, keepdims=True)
    mean = jnp.sum(weights * x, where, keepdims=True) / total
    spread = jnp.sum(weights * jnp.square(x - jax.lax.stop_gradient(mean)), where, keepdims=True) / total
    return (mean, spread) if keepdims else (jnp.squeeze(mean, where), jnp.squeeze(spread, where))


@op(
    "tf.nn.sufficient_statistics",
    type="sufficient_statistics",
    tensors="x",
    outputs=3,
    v1="x axes -shift keep_dims=keepdims name keepdims",
)
def sums_for_moments(x: Any, axes: Any, keepdims: Any = False) -> Any:
    """How many elements there are along some axes, their sum, and the sum of their squares."""
    where = axes_of(axes) or ()
    count = np.asarray(np.prod([x.shape[axis] for axis in where]), x.dtype)
    return count, jnp.sum(x, where, keepdims=bool(keepdims)), jnp.sum(x * x, where, keepdims=bool(keepdims))


@op(
    "tf.nn.normalize_moments",
    type="normalize",
    tensors="counts mean_ss variance_ss shift",
    optional="shift",
    outputs=2,
)
def normalize_moments(counts: Any, mean_ss: Any, variance_ss: Any, shift: Any = None) -> Any:
    """The mean and the variance, of a number of elements, their sum and the sum of their squares."""
    mean = mean_ss / counts
    variance = variance_ss / counts - mean * mean
    return (mean if shift is None else mean + shift), variance


@op(
    v1_names="tf.nn.batch_norm_with_global_normalization",
    type="BatchNormWithGlobalNormalization",
    tensors="x mean variance offset scale",
    v1="t=x m=mean v=variance beta=offset gamma=scale variance_epsilon scale_after_normalization name input=x "
    "mean variance",
)
def batch_norm_with_global_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any, scale_after_normalization: bool
) -> Any:
    """(x - mean) / sqrt(variance + epsilon), moved, and scaled if asked for."""
    return batch_normalization(
        x, mean, variance, offset, scale if scale_after_normalization else None, variance_epsilon
    )


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
