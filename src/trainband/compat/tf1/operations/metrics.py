"""`tf.metrics`: metrics over many batches, in local variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import array, math, metrics, reductions
from trainband.compat.ops.dtypes import bool_, float32
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

Metric = tuple[Tensor, Any]


def _local(name: str, shape: Any = ()) -> Variable:
    return Variable(
        lambda: zeros(list(shape), float32),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
    )


cast, equal, reduce_sum = recorded(math.cast), recorded(math.equal), recorded(reductions.reduce_sum)
zeros, ones_like = recorded(array.zeros), recorded(array.ones_like)
logical_and, logical_not = recorded(math.logical_and), recorded(math.logical_not)
_quotient = recorded(metrics.quotient_of_counts)


def _collected(value: Tensor, update: Any, metrics_collections: Any, updates_collections: Any) -> Metric:
    graph = get_default_graph()
    for names, one in ((metrics_collections, value), (updates_collections, update)):
        for name in [names] if isinstance(names, str) else names or []:
            graph.add_to_collection(name, one)
    return value, update


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean so far, and the operation that adds a batch."""
    with variable_scope(name, "mean"):
        total, count = _local("total"), _local("count")
        numbers = cast(values, float32)
        weight = ones_like(numbers) if weights is None else cast(weights, float32) * ones_like(numbers)
        more = total.assign_add(reduce_sum(numbers * weight))
        several = count.assign_add(reduce_sum(weight))
        value = _quotient(total, count, name="value")
        update = _quotient(more, several, name="update_op")
        return _collected(value, update, metrics_collections, updates_collections)


def accuracy(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of correct predictions so far, and the operation that adds a batch."""
    first, second = convert(labels), convert(predictions)
    if first.dtype != second.dtype:
        second = cast(second, first.dtype)
    right = cast(equal(second, first), float32)
    return mean(right, weights, metrics_collections, updates_collections, name or "accuracy")


def _counting(labels: Any, predictions: Any, name: str, of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Any, Tensor]:
    first, second = cast(labels, bool_), cast(predictions, bool_)
    count = _local(name)
    return count, count.assign_add(reduce_sum(cast(of(first, second), float32)))


def precision(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of positive predictions that are correct, so far."""
    return _share(labels, predictions, weights, metrics_collections, updates_collections, name or "precision")


def recall(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The share of positive examples that were predicted, so far."""
    return _share(labels, predictions, weights, metrics_collections, updates_collections, name or "recall")


def _share(labels: Any, predictions: Any, weights: Any, metrics: Any, updates: Any, name: str) -> Metric:
    if weights is not None:
        raise NotImplementedError(f"tf.metrics.{name} with weights is not supported, nor planned.")
    with variable_scope(None, name):
        right, more_right = _counting(labels, predictions, "true_positives", logical_and)

        def wrong(y: Tensor, p: Tensor) -> Tensor:
            unlike = (logical_not(y), p) if name.startswith("precision") else (y, logical_not(p))
            return logical_and(*unlike)  # type: ignore[no-any-return]

        false, more_false = _counting(labels, predictions, "false_counts", wrong)
        value = _quotient(right, right + false, name="value")
        update = _quotient(more_right, more_right + more_false, name="update_op")  # type: ignore[operator]
        return _collected(value, update, metrics, updates)


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean of squared differences so far, and the operation that adds a batch."""
    squares = recorded(math.squared_difference)(cast(predictions, float32), cast(labels, float32))
    return mean(squares, weights, metrics_collections, updates_collections, name or "mean_squared_error")


def mean_absolute_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The mean of absolute differences so far, and the operation that adds a batch."""
    away = recorded(math.abs_)(cast(predictions, float32) - cast(labels, float32))
    return mean(away, weights, metrics_collections, updates_collections, name or "mean_absolute_error")


def root_mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> Metric:
    """The root of the mean of squared differences so far, and the operation that adds a batch."""
    value, update = mean_squared_error(labels, predictions, weights, None, None, name or "root_mean_squared_error")
    roots = recorded(math.sqrt)(value), recorded(math.sqrt)(update)
    return _collected(*roots, metrics_collections, updates_collections)
