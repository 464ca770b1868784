"""Candidate sampling: a few classes drawn in place of all, and the logits of those."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.dtypes import as_dtype, int64
from trainband.compat.ops.table import op

Probabilities = NDArray[np.float64]
"""Of each class."""


def log_uniform(count: int) -> Probabilities:
    """Falls roughly as the inverse of the class's number: for classes in the order of their frequency."""
    classes = np.arange(count, dtype=np.float64)
    return np.asarray(np.log((classes + 2) / (classes + 1)) / np.log(count + 1))


def uniform(count: int) -> Probabilities:
    """The same for all."""
    return np.full(count, 1 / count)


def by_frequency(frequencies: Any, distortion: float, reserved: int) -> Probabilities:
    """By a power of frequencies; the first classes are never drawn."""
    raised = np.concatenate([np.zeros(reserved), np.asarray(frequencies, np.float64) ** distortion])
    return np.asarray(raised / raised.sum())


def expected(probabilities: Probabilities, num_sampled: int, unique: bool) -> NDArray[np.float32]:
    """How often each class is drawn on average.

    Raises:
      ValueError: more different classes are asked for than there are.
    """
    if not unique:
        return np.asarray(probabilities * num_sampled, np.float32)
    if num_sampled > np.count_nonzero(probabilities):
        raise ArgumentError(f"cannot draw {num_sampled} different classes from {np.count_nonzero(probabilities)}")
    never = np.log1p(-np.minimum(probabilities, 1 - 1e-12))
    few, many = float(num_sampled), 1e18
    for _ in range(100):  # how many tries give so many different classes
        tries = np.sqrt(few * many)
        few, many = (tries, many) if -np.expm1(tries * never).sum() < num_sampled else (few, tries)
    return np.asarray(-np.expm1(few * never), np.float32)


@op("", type="CandidateSampler", random=True)
def candidates(key: Any, num_sampled: int, unique: bool, probabilities: Any, dtype: Any = int64) -> Any:
    """Draw classes, each at most once if `unique`."""
    logs = jnp.log(jnp.asarray(probabilities, np.float32))
    if unique:
        _, drawn = jax.lax.top_k(logs + jax.random.gumbel(key, logs.shape, np.float32), num_sampled)
    else:
        ends = jnp.asarray(np.cumsum(probabilities), np.float32)
        drawn = jnp.searchsorted(ends[:-1], jax.random.uniform(key, (num_sampled,), np.float32), side="right")
    return drawn.astype(as_dtype(dtype).numpy)


@op("", type="ExpectedCount", tensors="classes", flat=True)
def expected_counts(classes: Any, counts: Any) -> Any:
    """How often these classes are drawn on average."""
    return jnp.asarray(counts)[classes]


@op(
    "",
    type="sampled_logits",
    tensors="inputs true_weights true_biases weights biases labels sampled true_counts sampled_counts",
    outputs=2,
)
def sampled_logits(
    inputs: Any, true_weights: Any, true_biases: Any, weights: Any, biases: Any, labels: Any, sampled: Any,
    true_counts: Any, sampled_counts: Any, remove_accidental_hits: bool,
) -> Any:  # fmt: skip
    """The logits of each example's own classes and of the sampled ones, and which share of it each class is.

    Args:
      inputs: [batch, size].
      true_weights, true_biases: of the examples' own classes, [batch num_true, size] and [batch num_true].
      weights, biases: of the sampled classes, [sampled, size] and [sampled].
      labels: [batch, num_true].
    """
    batch, several = labels.shape
    true = jnp.einsum("bd,bnd->bn", inputs, true_weights.reshape(batch, several, -1))
    true = true + true_biases.reshape(batch, several) - jnp.log(jax.lax.stop_gradient(true_counts))
    others = jnp.matmul(inputs, weights.T) + biases - jnp.log(jax.lax.stop_gradient(sampled_counts))
    if remove_accidental_hits:
        hit = jnp.any(labels[:, :, None] == sampled[None, None, :], 1)
        others = others + jnp.where(hit, np.finfo(np.float32).min, 0).astype(others.dtype)
    shares = [jnp.full(true.shape, 1 / several, true.dtype), jnp.zeros(others.shape, true.dtype)]
    return jnp.concatenate([true, others], 1), jnp.concatenate(shares, 1)
