"""`tf.losses`: losses with weights, reduced and collected."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import losses as formulas
from trainband.compat.ops import math
from trainband.compat.ops.losses import Reduction as Reduction
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.array import constant
from trainband.compat.tf1.operations.recorder import recorded


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
    reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:
    """The losses times their weights, reduced.

    Raises:
      ValueError: no such reduction.
    """
    if reduction not in vars(Reduction).values():
        raise ValueError(f"Invalid Reduction Key {reduction}.")
    result = recorded(formulas.weighted_loss)(losses, weights, reduction, name=scope or "weighted_loss")
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, result)
    return result


def _pair(labels: Any, predictions: Any) -> tuple[Tensor, Tensor]:
    if labels is None or predictions is None:
        raise ValueError("labels and predictions must not be None.")
    first, second = convert(labels), convert(predictions)
    first.shape.assert_is_compatible_with(second.shape)
    return first, second


def mean_squared_error(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The squares of the differences."""
    losses = recorded(formulas.squared_errors)(*_pair(labels, predictions))
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def absolute_difference(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The absolute differences."""
    losses = recorded(formulas.absolute_errors)(*_pair(labels, predictions))
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def mean_pairwise_squared_error(
    labels: Any, predictions: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES,
) -> Any:  # fmt: skip
    """How much the differences between labels and predictions differ within each example."""
    result = recorded(formulas.pairwise_squared_errors)(*_pair(labels, predictions), weights, name=scope)
    if loss_collection:
        get_default_graph().add_to_collection(loss_collection, result)
    return result


def huber_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, delta: float = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """Squares of small differences; beyond `delta`, straight lines."""
    losses = recorded(formulas.huber_losses)(*_pair(labels, predictions), delta)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def log_loss(
    labels: Any, predictions: Any, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The log loss of probabilities."""
    losses = recorded(formulas.log_losses)(*_pair(labels, predictions), epsilon)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def hinge_loss(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """How far logits are on the wrong side, or too near to it."""
    losses = recorded(formulas.hinge_losses)(*_pair(labels, logits))
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def cosine_distance(
    labels: Any, predictions: Any, axis: int | None = None, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """One minus the product of unit vectors."""
    where = axis if axis is not None else dim
    if where is None:
        raise ValueError("You must specify argument `axis`.")
    losses = recorded(formulas.cosine_distances)(*_pair(labels, predictions), where)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The cross entropy, by class probabilities."""
    losses = recorded(formulas.softmax_losses)(onehot_labels, logits, label_smoothing)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any, logits: Any, weights: Any = 1.0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The cross entropy, by the number of the class."""
    losses = recorded(formulas.sparse_softmax_losses)(labels, logits)
    return compute_weighted_loss(losses, weights, scope, loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: Any, logits: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None,
    loss_collection: str | None = GraphKeys.LOSSES, reduction: str = Reduction.SUM_BY_NONZERO_WEIGHTS,
) -> Any:  # fmt: skip
    """The cross entropy of each class by itself."""
    losses = recorded(formulas.sigmoid_losses)(multi_class_labels, logits, label_smoothing)
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


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Any:
    """The sum of the losses of regularizers."""
    found = get_regularization_losses(scope)
    return recorded(math.add_n)(found, name=name) if found else constant(0.0)


def get_total_loss(add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None) -> Any:
    """The sum of all that was collected."""
    found = get_losses(scope) + (get_regularization_losses(scope) if add_regularization_losses else [])
    return recorded(math.add_n)(found, name=name)
