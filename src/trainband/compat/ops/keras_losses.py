"""The losses and metrics of `tf.keras`: for each example, the mean over the last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.cross_entropy import sigmoid_cross_entropy
from trainband.compat.ops.cross_entropy import softmax_cross_entropy as _of_classes
from trainband.compat.ops.math import cast
from trainband.compat.ops.table import op

EPSILON = 1e-7
"""Keeps logarithms and quotients finite, as `tf.keras.backend.epsilon()`."""


def _pair(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Both as floats, without a last axis of size 1 that only one of them has."""
    p = cast(y_pred, "float32") if not jnp.issubdtype(jnp.result_type(y_pred), jnp.floating) else jnp.asarray(y_pred)
    y = jnp.asarray(y_true).astype(p.dtype)
    if y.ndim == p.ndim + 1 and y.shape[-1] == 1:
        y = y[..., 0]
    elif p.ndim == y.ndim + 1 and p.shape[-1] == 1:
        p = p[..., 0]
    return y, p


def _named(names: str, where: str = "losses metrics") -> str:
    return " ".join(f"tf.keras.{space}.{name}" for space in where.split() for name in names.split())


def _mean_of(names: str, formula: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An operation: the mean of a formula of labels and predictions over the last axis."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return jnp.mean(formula(*_pair(y_true, y_pred)), -1)

    loss.__name__ = names.split()[0]
    loss.__doc__ = f"Keras's {loss.__name__.replace('_', ' ')} of each example."
    return op(v1_names=_named(names), type=loss.__name__, tensors="y_true y_pred")(loss)


def _log(x: Any) -> Any:
    return jnp.log(jnp.maximum(x, EPSILON) + 1.0)


def _unit(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, -1, keepdims=True), 1e-12))


def _signs(y: Any) -> Any:
    """Labels of 0 and 1 as -1 and 1."""
    return jnp.where(jnp.all((y == 0) | (y == 1)), 2 * y - 1, y)


mean_squared_error = _mean_of("mean_squared_error mse MSE", lambda y, p: jnp.square(p - y))
mean_absolute_error = _mean_of("mean_absolute_error mae MAE", lambda y, p: jnp.abs(p - y))
mean_absolute_percentage_error = _mean_of(
    "mean_absolute_percentage_error mape MAPE",
    lambda y, p: 100 * jnp.abs((y - p) / jnp.maximum(jnp.abs(y), EPSILON)),
)
mean_squared_logarithmic_error = _mean_of(
    "mean_squared_logarithmic_error msle MSLE", lambda y, p: jnp.square(_log(p) - _log(y))
)
hinge = _mean_of("hinge", lambda y, p: jnp.maximum(1 - _signs(y) * p, 0))
squared_hinge = _mean_of("squared_hinge", lambda y, p: jnp.square(jnp.maximum(1 - _signs(y) * p, 0)))
poisson = _mean_of("poisson", lambda y, p: p - y * jnp.log(p + EPSILON))
logcosh = _mean_of("logcosh", lambda y, p: p - y + jax.nn.softplus(-2 * (p - y)) - jnp.log(2.0).astype(p.dtype))


@op(v1_names=_named("kullback_leibler_divergence kld KLD"), type="kld", tensors="y_true y_pred")
def kullback_leibler_divergence(y_true: Any, y_pred: Any) -> Any:
    """How far the predicted probabilities are from the true ones."""
    y, p = (jnp.clip(one, EPSILON, 1) for one in _pair(y_true, y_pred))
    return jnp.sum(y * jnp.log(y / p), -1)


@op(v1_names=_named("categorical_hinge", "losses"), type="categorical_hinge", tensors="y_true y_pred")
def categorical_hinge(y_true: Any, y_pred: Any) -> Any:
    """By how much another class's score, plus one, exceeds that of the true class."""
    y, p = _pair(y_true, y_pred)
    return jnp.maximum(jnp.max((1 - y) * p, -1) - jnp.sum(y * p, -1) + 1, 0)


@op(v1_names=_named("cosine_similarity cosine_proximity cosine"), type="cosine", tensors="y_true y_pred")
def cosine_similarity(y_true: Any, y_pred: Any) -> Any:
    """Minus the cosine of the angle between labels and predictions."""
    y, p = _pair(y_true, y_pred)
    return -jnp.sum(_unit(y) * _unit(p), -1)


@op("", type="huber", tensors="y_true y_pred")
def huber(y_true: Any, y_pred: Any, delta: float = 1.0) -> Any:
    """Half the squares of differences up to `delta`, and beyond it the straight line that continues them."""
    y, p = _pair(y_true, y_pred)
    error = jnp.abs(p - y)
    return jnp.mean(jnp.where(error <= delta, 0.5 * error * error, delta * error - 0.5 * delta * delta), -1)


@op("", type="categorical_crossentropy", tensors="y_true y_pred")
def categorical_cross_entropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Any:
    """The cross entropy of class probabilities."""
    p = jnp.asarray(y_pred)
    y = jnp.asarray(y_true).astype(p.dtype)
    if y.shape[1:] != p.shape[1:]:
        raise ArgumentError(f"Shapes {y.shape} and {p.shape} are incompatible")
    if label_smoothing:
        y = y * (1 - label_smoothing) + label_smoothing / p.shape[axis]
    if from_logits:
        return _of_classes(y, p, axis)
    p = p / jnp.sum(p, axis, keepdims=True)
    return -jnp.sum(y * jnp.log(jnp.clip(p, EPSILON, 1 - EPSILON)), axis)


@op("", type="sparse_categorical_crossentropy", tensors="y_true y_pred")
def sparse_categorical_cross_entropy(y_true: Any, y_pred: Any, from_logits: bool = False, axis: int = -1) -> Any:
    """The cross entropy of the numbers of classes."""
    p = jnp.moveaxis(jnp.asarray(y_pred), axis, -1)
    logits = p if from_logits else jnp.log(jnp.clip(p, EPSILON, 1 - EPSILON))
    classes = _classes(y_true, p)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), classes[..., None], -1)
    return losses[..., 0]


def _classes(y_true: Any, p: Any) -> Any:
    y = jnp.asarray(y_true)
    if y.ndim == p.ndim and y.shape[-1] == 1:
        y = y[..., 0]
    return y.astype(jnp.int32)


@op("", type="binary_crossentropy", tensors="y_true y_pred")
def binary_cross_entropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0
) -> Any:  # fmt: skip
    """The mean cross entropy of two classes over the last axis."""
    y, p = _pair(y_true, y_pred)
    if label_smoothing:
        y = y * (1 - label_smoothing) + 0.5 * label_smoothing
    return jnp.mean(binary_cross_entropies(y, p, from_logits), -1)


@op("", type="logistic_loss", tensors="y_true y_pred")
def binary_cross_entropies(y_true: Any, y_pred: Any, from_logits: bool = False) -> Any:
    """The cross entropy of two classes, of each element."""
    p = jnp.asarray(y_pred)
    y = jnp.asarray(y_true).astype(p.dtype)
    if from_logits:
        return sigmoid_cross_entropy(y, p)
    p = jnp.clip(p, EPSILON, 1 - EPSILON)
    return -(y * jnp.log(p + EPSILON) + (1 - y) * jnp.log(1 - p + EPSILON))


# --- metrics


@op(v1_names=_named("binary_accuracy", "metrics"), type="binary_accuracy", tensors="y_true y_pred")
def binary_accuracy(y_true: Any, y_pred: Any, threshold: float = 0.5) -> Any:
    """The share of right ones of two classes."""
    y, p = _pair(y_true, y_pred)
    return jnp.mean((y == (p > threshold).astype(p.dtype)).astype(p.dtype), -1)


@op(v1_names=_named("categorical_accuracy", "metrics"), type="categorical_accuracy", tensors="y_true y_pred")
def categorical_accuracy(y_true: Any, y_pred: Any) -> Any:
    """Whether the most probable class is the true one."""
    return (jnp.argmax(y_true, -1) == jnp.argmax(y_pred, -1)).astype(jnp.float32)


@op(
    v1_names=_named("sparse_categorical_accuracy", "metrics"),
    type="sparse_categorical_accuracy",
    tensors="y_true y_pred",
)
def sparse_categorical_accuracy(y_true: Any, y_pred: Any) -> Any:
    """Whether the most probable class is the true one, which is given by its number."""
    p = jnp.asarray(y_pred)
    return (_classes(y_true, p) == jnp.argmax(p, -1)).astype(jnp.float32)


@op(v1_names=_named("top_k_categorical_accuracy", "metrics"), type="top_k", tensors="y_true y_pred")
def top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Any:
    """Whether the true class is among the `k` most probable ones."""
    return _in_top(jnp.argmax(y_true, -1), y_pred, k)


@op(v1_names=_named("sparse_top_k_categorical_accuracy", "metrics"), type="top_k", tensors="y_true y_pred")
def sparse_top_k_categorical_accuracy(y_true: Any, y_pred: Any, k: int = 5) -> Any:
    """Whether the true class, given by its number, is among the `k` most probable ones."""
    return _in_top(_classes(y_true, jnp.asarray(y_pred)), y_pred, k)


def _in_top(classes: Any, y_pred: Any, k: int) -> Any:
    p = jnp.asarray(y_pred)
    score = jnp.take_along_axis(p, classes[..., None], -1)
    return (jnp.sum((p > score).astype(jnp.int32), -1) < k).astype(jnp.float32)
