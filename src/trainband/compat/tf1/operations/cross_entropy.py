"""The cross-entropies of `tf.nn`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.tf1.graphs.graph import Tensor, user_line
from trainband.compat.tf1.graphs.record import convert, record_tensor
from trainband.compat.tf1.operations import arithmetic


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: Any = None,
    logits: Any = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """The cross entropy of each row, by class probabilities; labels have no gradient."""
    _named_only("softmax_cross_entropy_with_logits", _sentinel)
    return _dense_cross_entropy(labels, logits, dim if axis is None else axis, name, labels_too=False)


def softmax_cross_entropy_with_logits_v2(
    labels: Any = None, logits: Any = None, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """The cross entropy of each row, by class probabilities; labels have a gradient too."""
    where = next((one for one in (axis, dim) if one is not None), -1)
    return _dense_cross_entropy(labels, logits, where, name, labels_too=True)


def _named_only(what: str, sentinel: Any) -> None:
    if sentinel is not None:
        raise ValueError(f"Only call `{what}` with named arguments (labels=..., logits=..., ...)")


def _dense_cross_entropy(labels: Any, logits: Any, axis: int, name: str | None, *, labels_too: bool) -> Tensor:
    second = convert(logits)
    first = arithmetic.cast(labels, second.dtype)

    def compute(target: Any, x: Any) -> Any:
        target = target if labels_too else jax.lax.stop_gradient(target)
        return -jnp.sum(target * jax.nn.log_softmax(x, axis), axis=axis)

    return record_tensor("softmax_cross_entropy_with_logits", compute, [first, second], name=name)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """The cross entropy of each row, by the number of its class."""
    _named_only("sparse_softmax_cross_entropy_with_logits", _sentinel)
    first, second = convert(labels), convert(logits)
    ranks = first.shape.ndims, second.shape.ndims
    if None not in ranks and ranks[0] != (ranks[1] or 0) - 1:
        raise ValueError(
            f"Rank mismatch: Rank of labels (received {ranks[0]}) should equal rank of logits minus 1 (received "
            f"{ranks[1]}). (at {user_line()})"
        )

    def compute(target: Any, x: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x), target[..., None].astype("int32"), axis=-1)[..., 0]

    return record_tensor("SparseSoftmaxCrossEntropyWithLogits", compute, [first, second], name=name)


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """The cross entropy of each element, of two classes."""
    _named_only("sigmoid_cross_entropy_with_logits", _sentinel)
    second = convert(logits)
    first = convert(labels, second.dtype)

    def compute(z: Any, x: Any) -> Any:
        return jnp.where(x >= 0, x, 0) - x * z + jnp.log1p(jnp.exp(-jnp.abs(x)))

    return record_tensor("logistic_loss", compute, [first, second], name=name)


def weighted_cross_entropy_with_logits(targets: Any, logits: Any, pos_weight: Any, name: str | None = None) -> Tensor:
    """As `sigmoid_cross_entropy_with_logits`, the positive class weighted."""
    second = convert(logits)
    inputs = [convert(targets, second.dtype), second, convert(pos_weight, second.dtype)]

    def compute(z: Any, x: Any, weight: Any) -> Any:
        factor = 1 + (weight - 1) * z
        return (1 - z) * x + factor * (jnp.log1p(jnp.exp(-jnp.abs(x))) + jax.nn.relu(-x))

    return record_tensor("weighted_logistic_loss", compute, inputs, name=name)


def log_poisson_loss(targets: Any, log_input: Any, name: str | None = None) -> Tensor:
    """exp(log_input) - log_input targets."""
    second = convert(log_input)
    return record_tensor(
        "log_poisson_loss", lambda z, c: jnp.exp(c) - z * c, [convert(targets, second.dtype), second], name=name
    )
