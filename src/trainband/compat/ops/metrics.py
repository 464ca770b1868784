"""What `tf.metrics` counts in a batch, and what it computes from its counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import axes_of
from trainband.compat.ops.math import abs_, cast
from trainband.compat.ops.segments import confusion_matrix
from trainband.compat.ops.table import op

EPSILON = 1e-7
_PAIR = {"tensors": "labels predictions weights", "optional": "weights"}


@op("", type="DivNoNan", tensors="total count")
def quotient_of_counts(total: Any, count: Any) -> Any:
    """A total divided by a count; zero where nothing was counted."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0).astype(total.dtype)


@op("", type="RealDiv", tensors="some others")
def share_of_counts(some: Any, others: Any, epsilon: float = 0.0) -> Any:
    """The share of some among them and others."""
    return some / (some + others + np.float32(epsilon))


@op("", type="Sub", tensors="x")
def rest_of_one(x: Any) -> Any:
    """One minus a number."""
    return 1 - x


@op("", type="Mean", tensors="x")
def mean_of_classes(x: Any) -> Any:
    """The mean of all."""
    return jnp.mean(x)


# --- means


def _squeezed(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Both without a last axis of size 1 that only one of them has."""
    if labels.ndim == predictions.ndim + 1 and labels.shape[-1] == 1:
        return labels[..., 0], predictions
    if predictions.ndim == labels.ndim + 1 and predictions.shape[-1] == 1:
        return labels, predictions[..., 0]
    return labels, predictions


def _weight(weights: Any, like: Any) -> Any:
    """A weight for each element."""
    if weights is None:
        return jnp.ones(like.shape, np.float32)
    given = cast(weights, "float32")
    if given.ndim == like.ndim + 1 and given.shape[-1] == 1:
        given = given[..., 0]
    elif given.ndim and given.ndim == like.ndim - 1:
        given = given[..., None]
    return jnp.broadcast_to(given, like.shape)


@op("", type="weighted_sums", tensors="values weights", optional="weights", outputs=2)
def weighted_sums(values: Any, weights: Any = None, whole: bool = True) -> Any:
    """The sum of values times their weights, and that of the weights; element by element if not `whole`."""
    x = cast(values, "float32")
    w = _weight(weights, x)
    return (jnp.sum(x * w), jnp.sum(w)) if whole else (x * w, w)


@op("", type="matches", tensors="labels predictions")
def matches(labels: Any, predictions: Any) -> Any:
    """Where labels and predictions are equal."""
    y, p = _squeezed(labels, predictions)
    return (cast(p, y.dtype) == y).astype(np.float32)


@op("", type="SquaredDifference", tensors="labels predictions")
def squared_errors(labels: Any, predictions: Any) -> Any:
    """The squares of the differences."""
    y, p = _squeezed(cast(labels, "float32"), cast(predictions, "float32"))
    return (p - y) * (p - y)


@op("", type="Abs", tensors="labels predictions")
def absolute_errors(labels: Any, predictions: Any) -> Any:
    """The absolute differences."""
    y, p = _squeezed(cast(labels, "float32"), cast(predictions, "float32"))
    return abs_(p - y)


@op("", type="relative_error", tensors="labels predictions normalizer")
def relative_errors(labels: Any, predictions: Any, normalizer: Any) -> Any:
    """The absolute differences divided by a number for each, and zero where that is zero."""
    away, by = absolute_errors(labels, predictions), cast(normalizer, "float32")
    return jnp.where(by == 0, 0, away / jnp.where(by == 0, 1, by))


@op("", type="cosine", tensors="labels predictions")
def products_along(labels: Any, predictions: Any, axis: Any) -> Any:
    """The sums of products along an axis."""
    return jnp.sum(cast(labels, "float32") * cast(predictions, "float32"), axes_of(axis), keepdims=True)


@op("", type="Less", tensors="values")
def those_below(values: Any, threshold: Any) -> Any:
    """Which values are below a threshold."""
    return (values < threshold).astype(np.float32)


# --- right and wrong predictions


def _counted(y: Any, p: Any, w: Any, axes: Any) -> tuple[Any, Any, Any, Any]:
    return tuple(jnp.sum(jnp.where(of, w, 0), axes) for of in (y & p, ~y & p, ~y & ~p, y & ~p))  # type: ignore[return-value]


@op("", type="outcomes", outputs=4, **_PAIR)  # type: ignore[arg-type]
def outcomes(labels: Any, predictions: Any, weights: Any = None) -> Any:
    """How many positives and negatives are right and wrong: true and false positives, true and false negatives."""
    y, p = _squeezed(cast(labels, "bool"), cast(predictions, "bool"))
    return _counted(y, p, _weight(weights, p), None)


@op("", type="outcomes", outputs=4, **_PAIR)  # type: ignore[arg-type]
def outcomes_at(labels: Any, predictions: Any, weights: Any = None, thresholds: Any = ()) -> Any:
    """The same for each threshold above which a prediction counts as positive."""
    y, p = _squeezed(cast(labels, "bool"), cast(predictions, "float32"))
    w = jnp.ravel(_weight(weights, p))
    above = jnp.ravel(p)[None, :] > np.asarray(thresholds, np.float32)[:, None]
    return _counted(jnp.broadcast_to(jnp.ravel(y), above.shape), above, w[None, :], 1)


def spread_thresholds(count: int) -> list[float]:
    """Evenly spaced thresholds, the first of which all predictions exceed, and the last none."""
    return [0.0 - EPSILON, *((i + 1) / (count - 1) for i in range(count - 2)), 1.0 + EPSILON]


@op("", type="auc", tensors="tp fp tn fn")
def area_under_curve(tp: Any, fp: Any, tn: Any, fn: Any, curve: str = "ROC", method: str = "trapezoidal") -> Any:
    """The area under a curve through the points that the thresholds give."""
    if curve == "PR" and method == "careful_interpolation":
        return _interpolated(tp, fp, fn)
    recall = (tp + 1e-6) / (tp + fn + 1e-6)
    x, y = (fp / (fp + tn + 1e-6), recall) if curve == "ROC" else (recall, (tp + 1e-6) / (tp + fp + 1e-6))
    left, right = y[:-1], y[1:]
    heights = {"minoring": jnp.minimum, "majoring": jnp.maximum}.get(method, lambda a, b: (a + b) / 2)
    return jnp.sum((x[:-1] - x[1:]) * heights(left, right))


def _interpolated(tp: Any, fp: Any, fn: Any) -> Any:
    """Between two points, the numbers of true and of all positives change together in a straight line."""
    change, positive = tp[:-1] - tp[1:], tp + fp
    slope = quotient_of_counts(change, positive[:-1] - positive[1:])
    start = tp[1:] - slope * positive[1:]
    both = (positive[:-1] > 0) & (positive[1:] > 0)
    ratio = jnp.where(both, quotient_of_counts(positive[:-1], positive[1:]), 1)
    return jnp.sum(quotient_of_counts(slope * (change + start * jnp.log(ratio)), tp[1:] + fn[1:]))


@op("", type="sensitivity_at_specificity", tensors="tp fp tn fn")
def sensitivity_where(tp: Any, fp: Any, tn: Any, fn: Any, specificity: Any) -> Any:
    """The sensitivity at the first threshold whose specificity is nearest to the given one."""
    place = jnp.argmin(jnp.abs(tn / (tn + fp + EPSILON) - specificity))
    return tp[place] / (tp[place] + fn[place] + EPSILON)


@op("", type="specificity_at_sensitivity", tensors="tp fp tn fn")
def specificity_where(tp: Any, fp: Any, tn: Any, fn: Any, sensitivity: Any) -> Any:
    """The specificity at the last threshold whose sensitivity is nearest to the given one."""
    away = jnp.abs(tp / (tp + fn + EPSILON) - sensitivity)
    place = away.shape[0] - 1 - jnp.argmin(away[::-1])
    return tn[place] / (tn[place] + fp[place] + EPSILON)


# --- classes


@op("", type="confusion_matrix", **_PAIR)  # type: ignore[arg-type]
def confusions(labels: Any, predictions: Any, weights: Any = None, num_classes: Any = None) -> Any:
    """How often each class was predicted as each, as float64."""
    y, p = (jnp.ravel(cast(one, "int64")) for one in (labels, predictions))
    w = None if weights is None else jnp.ravel(jnp.broadcast_to(weights, labels.shape))
    return confusion_matrix(y, p, num_classes, w, "float64")


@op("", type="mean_iou", tensors="confusion")
def mean_intersection(confusion: Any) -> Any:
    """The mean over the classes that occur, of how many are in both labels and predictions among those in either."""
    both = jnp.diagonal(confusion)
    either = jnp.sum(confusion, 0) + jnp.sum(confusion, 1) - both
    found = jnp.sum(jnp.where(either > 0, both / jnp.where(either > 0, either, 1), 0))
    return quotient_of_counts(found, jnp.sum(either != 0)).astype(np.float32)


@op("", type="per_class", outputs=2, **_PAIR)  # type: ignore[arg-type]
def right_by_class(labels: Any, predictions: Any, weights: Any = None, num_classes: Any = None) -> Any:
    """How many examples of each class were predicted right, and how many there are."""
    y, p = (jnp.ravel(cast(one, "int64")) for one in _squeezed(labels, predictions))
    w = jnp.ones(y.shape, np.float32) if weights is None else jnp.ravel(_weight(weights, y))
    none = jnp.zeros(int(num_classes), np.float32)
    return none.at[y].add(jnp.where(y == p, w, 0)), none.at[y].add(w)


# --- the k largest


def _best(predictions: Any, k: Any) -> Any:
    return jax.lax.top_k(predictions, int(k))[1]


def _as_rows(labels: Any, rank: int) -> Any:
    return labels[..., None] if labels.ndim < rank else labels


def _first_of_kind(labels: Any) -> Any:
    """Which labels of a row are not listed before in it."""
    same = labels[..., :, None] == labels[..., None, :]
    return ~jnp.any(same & np.tri(labels.shape[-1], k=-1, dtype=bool), -1)


@op("", type="outcomes_at_k", outputs=3, **_PAIR)  # type: ignore[arg-type]
def outcomes_at_k(
    labels: Any, predictions: Any, weights: Any = None, k: Any = None, class_id: Any = None, is_sorted: bool = False
) -> Any:
    """Of the k classes that are predicted for each row: true positives, false positives and false negatives.

    Args:
      is_sorted: whether the predictions are the classes themselves.
    """
    chosen = predictions if is_sorted else _best(predictions, k)
    y = _as_rows(labels, chosen.ndim)
    hits = y[..., :, None] == chosen[..., None, :]
    of_label = _first_of_kind(y) & (True if class_id is None else y == class_id)
    of_choice = jnp.ones(chosen.shape, bool) if class_id is None else chosen == class_id
    found = jnp.sum(jnp.any(hits, -1) & of_label, -1)
    rows = [found, jnp.sum(of_choice, -1) - found, jnp.sum(of_label, -1) - found]
    return [jnp.sum(one * _weight(weights, one), dtype=np.float64) for one in rows]


@op("", type="average_precision", outputs=2, **_PAIR)  # type: ignore[arg-type]
def average_precisions(labels: Any, predictions: Any, weights: Any = None, k: Any = None) -> Any:
    """The sum of the rows' average precisions among their k largest predictions, and that of the weights."""
    chosen = _best(predictions, k)
    y = _as_rows(labels, chosen.ndim)
    relevant = jnp.any(y[..., None, :] == chosen[..., :, None], -1).astype(np.float64)
    precision = jnp.cumsum(relevant, -1) / np.arange(1, int(k) + 1, dtype=np.float32)
    average = jnp.sum(precision * relevant, -1) / np.float32(min(int(k), y.shape[-1]))
    w = _weight(weights, average)
    return jnp.sum(average * w, dtype=np.float64), jnp.sum(w, dtype=np.float64)
