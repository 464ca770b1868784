"""`tf.metrics`: metrics over many batches, in local variables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops import array, math, metrics
from trainband.compat.ops.dtypes import DType, float32, float64
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

Metric = tuple[Tensor, Any]
Parameter = inspect.Parameter
zeros = recorded(array.zeros)


def _metric(function: Callable[..., Metric]) -> Callable[..., Metric]:
    """A metric in a variable scope of its own, that is added to collections."""
    own = list(inspect.signature(function).parameters.values())
    positional = [one for one in own if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    more = [
        Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for one in ("metrics_collections", "updates_collections")
    ]
    later = [one.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for one in own if one not in positional]
    name = Parameter("name", Parameter.POSITIONAL_OR_KEYWORD, default=None)
    signature = inspect.Signature([*positional, *more, *later[:1], name, *later[1:]])

    @functools.wraps(function)
    def measured(*arguments: Any, **keywords: Any) -> Metric:
        given = dict(signature.bind(*arguments, **keywords).arguments)
        collections = [given.pop(one.name, None) for one in more]
        with variable_scope(given.pop("name", None), function.__name__):
            found = function(**given)
        for names, one in zip(collections, found, strict=True):
            for collection in [names] if isinstance(names, str) else names or []:
                get_default_graph().add_to_collection(collection, one)
        return found

    measured.__signature__ = signature  # type: ignore[attr-defined]
    return measured


def _local(name: str, shape: Sequence[int] = (), dtype: DType = float32) -> Variable:
    return Variable(
        lambda: zeros(list(shape), dtype),
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        name=name,
    )


def _totals(names: str, increments: Sequence[Any], dtype: DType = float32) -> tuple[list[Variable], list[Any]]:
    """(variables that add up increments, the operations that add a batch's)."""
    tensors = [convert(one) for one in increments]
    variables = [
        _local(name, [size or 0 for size in one.shape.sizes or ()], dtype)
        for name, one in zip(names.split(), tensors, strict=True)
    ]
    return variables, [one.assign_add(more) for one, more in zip(variables, tensors, strict=True)]


def _of(totals: tuple[list[Variable], list[Any]], formula: Callable[..., Any], *settings: Any) -> Metric:
    """The value of a formula of totals, and that after adding a batch."""
    compute = recorded(formula)
    return compute(*totals[0], *settings, name="value"), compute(*totals[1], *settings, name="update_op")


# --- means


def _mean(values: Any, weights: Any) -> Metric:
    return _of(_totals("total count", recorded(metrics.weighted_sums)(values, weights)), metrics.quotient_of_counts)


@_metric
def mean(values: Any, weights: Any = None) -> Metric:
    """The mean so far, and the operation that adds a batch."""
    return _mean(values, weights)


@_metric
def mean_tensor(values: Any, weights: Any = None) -> Metric:
    """The mean of each element so far, and the operation that adds a batch."""
    sums = recorded(metrics.weighted_sums)(values, weights, False)
    return _of(_totals("total_tensor count_tensor", sums), metrics.quotient_of_counts)


@_metric
def accuracy(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The share of correct predictions so far, and the operation that adds a batch."""
    return _mean(recorded(metrics.matches)(labels, predictions), weights)


@_metric
def mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The mean of squared differences so far, and the operation that adds a batch."""
    return _mean(recorded(metrics.squared_errors)(labels, predictions), weights)


@_metric
def mean_absolute_error(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The mean of absolute differences so far, and the operation that adds a batch."""
    return _mean(recorded(metrics.absolute_errors)(labels, predictions), weights)


@_metric
def root_mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The root of the mean of squared differences so far, and the operation that adds a batch."""
    value, update = _mean(recorded(metrics.squared_errors)(labels, predictions), weights)
    return recorded(math.sqrt)(value), recorded(math.sqrt)(update)


@_metric
def mean_relative_error(labels: Any, predictions: Any, normalizer: Any, weights: Any = None) -> Metric:
    """The mean of absolute differences divided by a normalizer so far, and the operation that adds a batch."""
    return _mean(recorded(metrics.relative_errors)(labels, predictions, normalizer), weights)


@_metric
def mean_cosine_distance(labels: Any, predictions: Any, dim: Any, weights: Any = None) -> Metric:
    """One minus the mean product of unit vectors so far, and the operation that adds a batch."""
    value, update = _mean(recorded(metrics.products_along)(labels, predictions, dim), weights)
    return recorded(metrics.rest_of_one)(value), recorded(metrics.rest_of_one)(update)


@_metric
def percentage_below(values: Any, threshold: Any, weights: Any = None) -> Metric:
    """The share of values below a threshold so far, and the operation that adds a batch."""
    return _mean(recorded(metrics.those_below)(values, threshold), weights)


# --- right and wrong predictions

_OUTCOMES = ("true_positives", "false_positives", "true_negatives", "false_negatives")


def _outcomes(labels: Any, predictions: Any, weights: Any, thresholds: Any = None) -> list[Any]:
    if thresholds is None:
        return list(recorded(metrics.outcomes)(labels, predictions, weights))
    return list(recorded(metrics.outcomes_at)(labels, predictions, weights, [float(one) for one in thresholds]))


def _count(title: str) -> Callable[..., Metric]:
    def count(labels: Any, predictions: Any, weights: Any = None) -> Metric:
        found = _outcomes(labels, predictions, weights)[_OUTCOMES.index(title)]
        return _of(_totals("count", [found]), array.identity)

    count.__name__ = count.__qualname__ = title
    count.__doc__ = f"How many {title.replace('_', ' ')} there are so far, and the operation that adds a batch."
    return _metric(count)


def _count_at(title: str) -> Callable[..., Metric]:
    def count(labels: Any, predictions: Any, thresholds: Any, weights: Any = None) -> Metric:
        found = _outcomes(labels, predictions, weights, thresholds)[_OUTCOMES.index(title)]
        return _of(_totals(title, [found]), array.identity)

    count.__name__ = count.__qualname__ = f"{title}_at_thresholds"
    count.__doc__ = f"How many {title.replace('_', ' ')} each threshold gives so far, and what adds a batch."
    return _metric(count)


true_positives, false_positives, true_negatives, false_negatives = map(_count, _OUTCOMES)
(
    true_positives_at_thresholds,
    false_positives_at_thresholds,
    true_negatives_at_thresholds,
    false_negatives_at_thresholds,
) = map(_count_at, _OUTCOMES)


@_metric
def precision(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The share of positive predictions that are correct, so far."""
    right, wrong, _, _ = _outcomes(labels, predictions, weights)
    (tp, fp), (more_tp, more_fp) = _totals("true_positives false_positives", [right, wrong])
    return _of(([tp, tp + fp], [more_tp, more_tp + more_fp]), metrics.quotient_of_counts)  # type: ignore[operator]


@_metric
def recall(labels: Any, predictions: Any, weights: Any = None) -> Metric:
    """The share of positive examples that were predicted, so far."""
    right, _, _, missed = _outcomes(labels, predictions, weights)
    (tp, fn), (more_tp, more_fn) = _totals("true_positives false_negatives", [right, missed])
    return _of(([tp, tp + fn], [more_tp, more_tp + more_fn]), metrics.quotient_of_counts)  # type: ignore[operator]


@_metric
def precision_at_thresholds(labels: Any, predictions: Any, thresholds: Any, weights: Any = None) -> Metric:
    """The precision that each threshold gives, so far."""
    right, wrong, _, _ = _outcomes(labels, predictions, weights, thresholds)
    totals = _totals("true_positives false_positives", [right, wrong])
    return _of(totals, metrics.share_of_counts, metrics.EPSILON)


@_metric
def recall_at_thresholds(labels: Any, predictions: Any, thresholds: Any, weights: Any = None) -> Metric:
    """The recall that each threshold gives, so far."""
    right, _, _, missed = _outcomes(labels, predictions, weights, thresholds)
    totals = _totals("true_positives false_negatives", [right, missed])
    return _of(totals, metrics.share_of_counts, metrics.EPSILON)


def _at_all(labels: Any, predictions: Any, weights: Any, thresholds: Any) -> tuple[list[Variable], list[Any]]:
    return _totals(" ".join(_OUTCOMES), _outcomes(labels, predictions, weights, thresholds))


@_metric
def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    *,
    curve: str = "ROC",
    summation_method: str = "trapezoidal",
    thresholds: Any = None,
) -> Metric:
    """The area under the receiver operating characteristic, or under precision by recall, so far.

    Raises:
      ValueError: no such curve.
    """
    if curve not in ("ROC", "PR"):
        raise ValueError(f"curve must be either ROC or PR, {curve} unknown")
    inner = sorted(thresholds) if thresholds is not None else None
    points = (
        metrics.spread_thresholds(num_thresholds)
        if inner is None
        else [-metrics.EPSILON, *inner, 1.0 + metrics.EPSILON]
    )
    return _of(_at_all(labels, predictions, weights, points), metrics.area_under_curve, curve, summation_method)


@_metric
def sensitivity_at_specificity(
    labels: Any, predictions: Any, specificity: float, weights: Any = None, num_thresholds: int = 200
) -> Metric:
    """The sensitivity at the threshold that gives this specificity, so far."""
    totals = _at_all(labels, predictions, weights, metrics.spread_thresholds(num_thresholds))
    return _of(totals, metrics.sensitivity_where, specificity)


@_metric
def specificity_at_sensitivity(
    labels: Any, predictions: Any, sensitivity: float, weights: Any = None, num_thresholds: int = 200
) -> Metric:
    """The specificity at the threshold that gives this sensitivity, so far."""
    totals = _at_all(labels, predictions, weights, metrics.spread_thresholds(num_thresholds))
    return _of(totals, metrics.specificity_where, sensitivity)


# --- classes


@_metric
def mean_iou(labels: Any, predictions: Any, num_classes: int, weights: Any = None) -> Metric:
    """The mean intersection over union of the classes so far, and the operation that adds a batch."""
    found = recorded(metrics.confusions)(labels, predictions, weights, num_classes)
    (total,), (more,) = _totals("total_confusion_matrix", [found], float64)
    return recorded(metrics.mean_intersection)(total, name="mean_iou"), more


@_metric
def mean_per_class_accuracy(labels: Any, predictions: Any, num_classes: int, weights: Any = None) -> Metric:
    """The mean over the classes of the share of correct predictions so far, and the operation that adds a batch."""
    found = recorded(metrics.right_by_class)(labels, predictions, weights, num_classes)
    shares, more = _of(_totals("count total", found), metrics.quotient_of_counts)
    return recorded(metrics.mean_of_classes)(shares, name="mean_accuracy"), more


# --- the k largest


def _at_k(kind: str, labels: Any, predictions: Any, k: Any, class_id: Any, weights: Any, is_sorted: bool) -> Metric:
    right, wrong, missed = recorded(metrics.outcomes_at_k)(labels, predictions, weights, k, class_id, is_sorted)
    of, names = (wrong, "false_positive") if kind == "precision" else (missed, "false_negative")
    return _of(_totals(f"true_positive_at_{k} {names}_at_{k}", [right, of], float64), metrics.share_of_counts)


@_metric
def precision_at_k(labels: Any, predictions: Any, k: int, class_id: Any = None, weights: Any = None) -> Metric:
    """The share of the k classes that are predicted for each example which are labels, so far."""
    return _at_k("precision", labels, predictions, k, class_id, weights, False)


@_metric
def recall_at_k(labels: Any, predictions: Any, k: int, class_id: Any = None, weights: Any = None) -> Metric:
    """The share of labels that are among the k classes that are predicted for their example, so far."""
    return _at_k("recall", labels, predictions, k, class_id, weights, False)


@_metric
def precision_at_top_k(
    labels: Any, predictions_idx: Any, k: Any = None, class_id: Any = None, weights: Any = None
) -> Metric:
    """Like `precision_at_k`, of the predicted classes themselves."""
    return _at_k("precision", labels, predictions_idx, k, class_id, weights, True)


@_metric
def recall_at_top_k(
    labels: Any, predictions_idx: Any, k: Any = None, class_id: Any = None, weights: Any = None
) -> Metric:
    """Like `recall_at_k`, of the predicted classes themselves."""
    return _at_k("recall", labels, predictions_idx, k, class_id, weights, True)


@_metric
def average_precision_at_k(labels: Any, predictions: Any, k: int, weights: Any = None) -> Metric:
    """The mean of the examples' average precisions among their k largest predictions, so far."""
    found = recorded(metrics.average_precisions)(labels, predictions, weights, k)
    return _of(_totals("total max", found, float64), metrics.quotient_of_counts)


sparse_precision_at_k = precision_at_k
sparse_average_precision_at_k = average_precision_at_k
