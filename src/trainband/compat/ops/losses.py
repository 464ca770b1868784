"""The losses of `tf.losses`: the formulas for each example, and how they are weighted and reduced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.ops.arrays import ArgumentError, axes_of
from trainband.compat.ops.cross_entropy import (
    sigmoid_cross_entropy,
    softmax_cross_entropy_of_constants,
    sparse_softmax_cross_entropy,
)
from trainband.compat.ops.math import abs_, cast, squared_difference
from trainband.compat.ops.table import op


class Reduction:
    """How the losses of examples become one."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All ways."""
        return tuple(value for name, value in vars(cls).items() if name.isupper())

    @classmethod
    def validate(cls, key: str) -> None:
        """Check that a way is one of them.

        Raises:
          ValueError: it is not.
        """
        if key not in cls.all():
            raise ValueError(f"Invalid Reduction Key {key}.")


@op("", type="weighted_loss", tensors="losses weights")
def weighted_loss(losses: Any, weights: Any, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS) -> Any:
    """The losses times their weights, reduced."""
    w = cast(weights, losses.dtype)
    if jnp.ndim(w) == jnp.ndim(losses) + 1 and w.shape[-1] == 1:
        w = w[..., 0]
    if jnp.ndim(w) and (
        jnp.ndim(w) != jnp.ndim(losses) or any(a not in (1, b) for a, b in zip(w.shape, losses.shape, strict=True))
    ):
        raise ArgumentError(
            f"weights can not be broadcast to values. values.shape={losses.shape}. weights.shape={w.shape}."
        )
    weighted = losses * w
    if reduction == Reduction.NONE:
        return weighted
    total = jnp.sum(weighted)
    if reduction == Reduction.SUM:
        return total
    if reduction == Reduction.SUM_OVER_BATCH_SIZE:
        count = jnp.asarray(losses.size, losses.dtype)
    elif reduction == Reduction.MEAN:
        count = jnp.sum(jnp.broadcast_to(w, losses.shape))
    else:
        count = jnp.sum(jnp.broadcast_to(w != 0, losses.shape).astype(losses.dtype))
    return jnp.where(count == 0, 0, total / jnp.where(count == 0, 1, count)).astype(losses.dtype)


def _pair(labels: Any, predictions: Any) -> tuple[Any, Any]:
    return cast(labels, "float32"), cast(predictions, "float32")


@op("", type="SquaredDifference", tensors="labels predictions")
def squared_errors(labels: Any, predictions: Any) -> Any:
    """The squares of the differences."""
    y, p = _pair(labels, predictions)
    return squared_difference(p, y)


@op("", type="Abs", tensors="labels predictions")
def absolute_errors(labels: Any, predictions: Any) -> Any:
    """The absolute differences."""
    y, p = _pair(labels, predictions)
    return abs_(p - y)


def _quotient(total: Any, count: Any) -> Any:
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0)


@op("", type="pairwise", tensors="labels predictions weights")
def pairwise_squared_errors(labels: Any, predictions: Any, weights: Any) -> Any:
    """The mean square of how much the differences of two elements of one example differ, summed over the examples."""
    y, p = _pair(labels, predictions)
    away = p - y
    w = cast(weights, away.dtype)
    axes = tuple(range(1, away.ndim))
    counts = jnp.sum(jnp.broadcast_to(w != 0, away.shape).astype(away.dtype), axes, keepdims=True)
    squares = jnp.sum(away * away, axes, keepdims=True)
    sums = jnp.sum(away, axes, keepdims=True)
    spread = _quotient(squares, counts - 1) - _quotient(sums * sums, counts * (counts - 1))
    total = jnp.sum(2 * spread * w)
    return jnp.where(jnp.sum(counts) > 0, total, 0)


@op("", type="huber", tensors="labels predictions")
def huber_losses(labels: Any, predictions: Any, delta: Any) -> Any:
    """Half the squares of differences up to `delta`, and beyond it the straight line that continues them."""
    y, p = _pair(labels, predictions)
    error = abs_(p - y)
    small = jnp.minimum(error, delta)
    return 0.5 * small * small + delta * (error - small)


@op("", type="log_loss", tensors="labels predictions")
def log_losses(labels: Any, predictions: Any, epsilon: Any) -> Any:
    """The log loss of probabilities."""
    y, p = _pair(labels, predictions)
    return -(y * jnp.log(p + epsilon) + (1 - y) * jnp.log(1 - p + epsilon))


@op("", type="hinge", tensors="labels logits")
def hinge_losses(labels: Any, logits: Any) -> Any:
    """How far logits are on the wrong side, or too near to it."""
    y, x = _pair(labels, logits)
    return jax.nn.relu(1 - (2 * y - 1) * x)


@op("", type="cosine", tensors="labels predictions")
def cosine_distances(labels: Any, predictions: Any, axis: Any) -> Any:
    """One minus the product of unit vectors."""
    y, p = _pair(labels, predictions)
    return 1 - jnp.sum(y * p, axis=axes_of(axis), keepdims=True)


@op("", type="softmax_cross_entropy_with_logits", tensors="onehot_labels logits")
def softmax_losses(onehot_labels: Any, logits: Any, label_smoothing: float = 0) -> Any:
    """The cross entropy by class probabilities, of which a share is spread over all classes."""
    labels = cast(onehot_labels, logits.dtype)
    if label_smoothing:
        labels = labels * (1.0 - label_smoothing) + label_smoothing / logits.shape[1]
    return softmax_cross_entropy_of_constants(labels, logits)


@op("", type="SparseSoftmaxCrossEntropyWithLogits", tensors="labels logits")
def sparse_softmax_losses(labels: Any, logits: Any) -> Any:
    """The cross entropy by the number of the class, whose last axis may be one of size 1."""
    if labels.ndim == logits.ndim:
        labels = jnp.squeeze(labels, -1)
    return sparse_softmax_cross_entropy(labels, logits)


@op("", type="logistic_loss", tensors="multi_class_labels logits")
def sigmoid_losses(multi_class_labels: Any, logits: Any, label_smoothing: float = 0) -> Any:
    """The cross entropy of each class by itself; labels are moved towards one half by a share."""
    labels = cast(multi_class_labels, logits.dtype)
    if label_smoothing:
        labels = labels * (1.0 - label_smoothing) + 0.5 * label_smoothing
    return sigmoid_cross_entropy(labels, logits)
