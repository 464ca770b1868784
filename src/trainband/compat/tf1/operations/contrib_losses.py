"""`tf.contrib.losses` and `tf.contrib.metrics`: as `tf.losses` and `tf.metrics`, but predictions come before labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainband.compat.ops import math, reductions
from trainband.compat.tf1.operations import losses, metrics
from trainband.compat.tf1.operations.recorder import recorded


def _swapped(function: Callable[..., Any], labels: str = "labels", predictions: str = "predictions") -> Any:
    """A loss or a metric whose first two parameters stand in the other order."""

    def call(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip((predictions, labels), args, strict=False))
        rest = args[2:]
        given = {**kwargs, **named}
        first, second = given.pop(labels, None), given.pop(predictions, None)
        return function(first, second, *rest, **given)

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    return call


absolute_difference = _swapped(losses.absolute_difference)
mean_squared_error = _swapped(losses.mean_squared_error)
log_loss = _swapped(losses.log_loss)
cosine_distance = _swapped(losses.cosine_distance)
softmax_cross_entropy = _swapped(losses.softmax_cross_entropy, "onehot_labels", "logits")
sparse_softmax_cross_entropy = _swapped(losses.sparse_softmax_cross_entropy, "labels", "logits")
sigmoid_cross_entropy = _swapped(losses.sigmoid_cross_entropy, "multi_class_labels", "logits")


def hinge_loss(logits: Any, labels: Any = None, scope: str | None = None) -> Any:
    """How far logits are on the wrong side, or too near to it, for each example."""
    return losses.hinge_loss(labels, logits, scope=scope, reduction=losses.Reduction.NONE)


# --- metrics

streaming_mean = metrics.mean
streaming_accuracy = _swapped(metrics.accuracy)
streaming_precision = _swapped(metrics.precision)
streaming_recall = _swapped(metrics.recall)
streaming_mean_squared_error = _swapped(metrics.mean_squared_error)
streaming_mean_absolute_error = _swapped(metrics.mean_absolute_error)
streaming_root_mean_squared_error = _swapped(metrics.root_mean_squared_error)


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
    """The share of predictions that are right."""
    right = recorded(math.cast)(recorded(math.equal)(predictions, labels), "float32")
    if weights is None:
        return recorded(reductions.reduce_mean)(right, name=name)
    factors = recorded(math.cast)(weights, "float32")
    total, count = recorded(reductions.reduce_sum)(right * factors), recorded(reductions.reduce_sum)(factors)
    return recorded(math.divide)(total, count, name=name)


def aggregate_metrics(*value_update_tuples: Any) -> tuple[list[Any], list[Any]]:
    """(the values of several metrics, their updates)."""
    if not value_update_tuples:
        raise ValueError("Expected at least one value_tensor/update_op pair")
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the values of several metrics by name, their updates)."""
    pairs = dict(names_to_tuples)
    return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}
