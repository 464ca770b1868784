"""`tf.losses`: losses with weights, reduced and collected."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.tf1.graphs.graph import GraphKeys, Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert, record_tensor
from trainband.compat.tf1.operations.arithmetic import abs_, add_n, cast, log, multiply, squared_difference, subtract
from trainband.compat.tf1.operations.array import constant
from trainband.compat.tf1.operations.cross_entropy import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)


class Reduction:
    """How losses of examples become one."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_OVER_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:
    """The losses times their weights, reduced.

    Raises:
      ValueError: no such reduction.
    """
    if reduction not in vars(Reduction).values():
        raise ValueError(f"Invalid Reduction Key {reduction}.")
    values = convert(losses)
    weight = cast(weights, values.dtype)

    def compute(x: Any, w: Any) -> Any:
        if jnp.ndim(w) == jnp.ndim(x) + 1 and w.shape[-1] == 1:
            w = w[..., 0]
        elif jnp.ndim(w) == jnp.ndim(x) - 1 and jnp.ndim(w):
            w = w[..., None]
        weighted = x * w
        if reduction == Reduction.NONE:
            return weighted
        total = jnp.sum(weighted)
        if reduction == Reduction.SUM:
            return total
        if reduction == Reduction.SUM_OVER_BATCH_SIZE:
            count = jnp.asarray(x.size, x.dtype)
        elif reduction == Reduction.MEAN:
            count = jnp.sum(jnp.broadcast_to(w, x.shape))
        else:
            count = jnp.sum(jnp.broadcast_to(w != 0, x.shape).astype(x.dtype))
        return jnp.where(count == 0, 0, total / jnp.where(count == 0, 1, count)).astype(x.dtype)

    result = record_tensor("weighted_loss", compute, [values, weight], name=scope or "weighted_loss")
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, result)
    return result


def _pair(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    if labels is None or predictions is None:
        raise ValueError("labels and predictions must not be None.")
    second = cast(predictions, "float32")
    first = cast(labels, "float32")
    first.shape.assert_is_compatible_with(second.shape)
    return first, second


def mean_squared_error(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The squares of the differences."""
    first, second = _pair(labels, predictions)
    return compute_weighted_loss(squared_difference(second, first), weights, scope, loss_collection, reduction)


def absolute_difference(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The absolute differences."""
    first, second = _pair(labels, predictions)
    return compute_weighted_loss(abs_(subtract(second, first)), weights, scope, loss_collection, reduction)


def huber_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, delta: float = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """Squares of small differences, and what goes on straight of large ones."""
    first, second = _pair(labels, predictions)

    def compute(y: Any, p: Any) -> Any:
        error = jnp.abs(p - y)
        small = jnp.minimum(error, delta)
        return 0.5 * small * small + delta * (error - small)

    losses = record_tensor("huber", compute, [first, second])
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def log_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The log loss of probabilities."""
    first, second = _pair(labels, predictions)
    losses = -(multiply(first, log(second + epsilon)) + multiply(1 - first, log(1 - second + epsilon)))  # type: ignore[operator]
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def hinge_loss(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """How far logits are on the wrong side, or too near to it."""
    first, second = _pair(labels, logits)
    losses = record_tensor("hinge", lambda y, x: jax.nn.relu(1 - (2 * y - 1) * x), [first, second])
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def cosine_distance(
    labels: Any, predictions: Any, axis: int | None = None, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
    dim: int | None = None,
) -> Tensor:  # fmt: skip
    """One less the product of unit vectors."""
    first, second = _pair(labels, predictions)
    where = axis if axis is not None else dim
    losses = record_tensor("cosine", lambda y, p: 1 - jnp.sum(y * p, axis=where, keepdims=True), [first, second])
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The cross entropy, by class probabilities."""
    second = convert(logits)
    labels = cast(onehot_labels, second.dtype)
    if label_smoothing:
        classes = second.shape.as_list()[1] or 1
        labels = labels * (1.0 - label_smoothing) + label_smoothing / classes
    losses = softmax_cross_entropy_with_logits(labels=labels, logits=second)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The cross entropy, by the number of the class."""
    first, second = convert(labels), convert(logits)
    if first.shape.ndims is not None and first.shape.ndims == second.shape.ndims:
        from trainband.compat.tf1.operations.array import squeeze

        first = squeeze(first, [-1])
    losses = sparse_softmax_cross_entropy_with_logits(labels=first, logits=second)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Tensor:  # fmt: skip
    """The cross entropy of each class by itself."""
    second = convert(logits)
    labels = cast(multi_class_labels, second.dtype)
    if label_smoothing:
        labels = labels * (1.0 - label_smoothing) + 0.5 * label_smoothing
    losses = sigmoid_cross_entropy_with_logits(labels=labels, logits=second)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def add_loss(loss: Any, loss_collection: str | None = GraphKeys.LOSSES) -> None:
    """Collects a loss."""
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = GraphKeys.LOSSES) -> list[Any]:
    """The losses that were collected."""
    return get_default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Any]:
    """The losses of regularizers."""
    return get_default_graph().get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """The sum of the losses of regularizers."""
    found = get_regularization_losses(scope)
    return add_n(found, name) if found else constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """The sum of all that was collected."""
    found = get_losses(scope) + (get_regularization_losses(scope) if add_regularization_losses else [])
    return add_n(found, name)
