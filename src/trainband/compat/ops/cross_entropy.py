"""The cross-entropies of `tf.nn`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, axis_of
from trainband.compat.ops.checks import check_range
from trainband.compat.ops.math import abs_, cast
from trainband.compat.ops.table import op


@op(
    v1_names="tf.nn.softmax_cross_entropy_with_logits",
    type="softmax_cross_entropy_with_logits",
    tensors="labels logits",
    v1="!_sentinel labels logits dim=axis name axis",
)
def softmax_cross_entropy_of_constants(labels: Any, logits: Any, axis: Any = -1) -> Any:
    """The cross entropy of each row, by class probabilities; labels have no gradient."""
    return softmax_cross_entropy(jax.lax.stop_gradient(labels), logits, axis)


@op(
    v1_names="tf.nn.softmax_cross_entropy_with_logits_v2",
    type="softmax_cross_entropy_with_logits",
    tensors="labels logits",
    v1="labels logits axis name dim=axis",
)
def softmax_cross_entropy(labels: Any, logits: Any, axis: Any = -1) -> Any:
    """The cross entropy of each row, by class probabilities; labels have a gradient, too."""
    return _of_rows(cast(labels, logits.dtype), logits, axis_of(axis, -1))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _of_rows(labels: Any, logits: Any, axis: int) -> Any:
    return -jnp.sum(labels * jax.nn.log_softmax(logits, axis), axis=axis)


@_of_rows.defjvp
def _derivative_of_rows(axis: int, values: Any, tangents: Any) -> tuple[Any, Any]:
    """By the logits, TensorFlow's kernel gives softmax - labels, also where the labels do not sum to 1."""
    labels, logits = values
    by_logits = (jax.nn.softmax(logits, axis) - labels) * tangents[1]
    return _of_rows(labels, logits, axis), jnp.sum(by_logits - jax.nn.log_softmax(logits, axis) * tangents[0], axis)


@op(
    "tf.nn.sparse_softmax_cross_entropy_with_logits",
    type="SparseSoftmaxCrossEntropyWithLogits",
    tensors="labels logits",
    v1="!_sentinel labels logits name",
)
def sparse_softmax_cross_entropy(labels: Any, logits: Any) -> Any:
    """The cross entropy of each row, by the number of its class."""
    if labels.ndim != logits.ndim - 1:
        raise ArgumentError(
            f"Rank mismatch: Rank of labels (received {labels.ndim}) should equal rank of logits minus 1 (received "
            f"{logits.ndim})."
        )
    check_range(labels, logits.shape[-1], "labels")
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None].astype("int32"), axis=-1)[..., 0]


@op(
    "tf.nn.sigmoid_cross_entropy_with_logits",
    type="logistic_loss",
    tensors="labels logits",
    like={"labels": "logits"},
    v1="!_sentinel labels logits name",
)
def sigmoid_cross_entropy(labels: Any, logits: Any) -> Any:
    """The cross entropy of each element, of two classes."""
    if labels.shape != logits.shape:
        raise ArgumentError(f"logits and labels must have the same shape ({logits.shape} vs {labels.shape})")
    return jnp.where(logits >= 0, logits, 0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits)))


@op(
    v1_names="tf.nn.weighted_cross_entropy_with_logits",
    type="weighted_logistic_loss",
    tensors="targets logits pos_weight",
    like={"targets": "logits", "pos_weight": "logits"},
)
def weighted_cross_entropy(targets: Any, logits: Any, pos_weight: Any) -> Any:
    """The cross entropy of each element, of two classes of which the positive one is weighted."""
    factor = 1 + (pos_weight - 1) * targets
    return (1 - targets) * logits + factor * (jnp.log1p(jnp.exp(-abs_(logits))) + jax.nn.relu(-logits))


@op(
    v1_names="tf.nn.log_poisson_loss",
    type="log_poisson_loss",
    tensors="targets log_input",
    like={"targets": "log_input"},
)
def log_poisson_loss(targets: Any, log_input: Any, compute_full_loss: bool = False) -> Any:
    """exp(log_input) - log_input targets; the full loss has Stirling's approximation of the rest, too."""
    loss = jnp.exp(log_input) - log_input * targets
    if not compute_full_loss:
        return loss
    is_zero = (targets >= 0) & (targets <= 1)  # there, the approximation is taken to be zero
    some = jnp.where(is_zero, 1, targets)
    stirling = some * jnp.log(some) - some + 0.5 * jnp.log(2 * np.pi * some)
    return loss + jnp.where(is_zero, 0, stirling)
