"""Connectionist temporal classification: the loss, and decoders in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.checks import check, refuse
from trainband.compat.ops.table import op

Labels = list[int]

_NEVER = -1e30
"""The logarithm of a probability of zero, of which differences can be taken."""


@op("", type="CTCLoss", tensors="inputs labels label_lengths sequence_length")
def ctc_loss(
    inputs: Any,
    labels: Any,
    label_lengths: Any,
    sequence_length: Any,
    merges: bool = True,
    ignores_longer: bool = False,
) -> Any:
    """The negative logarithm of the probability of each sequence's labels. The last class is the blank.

    Args:
      inputs: [steps, batch, classes], the logits.
      labels: [batch, most labels], filled up with zeros.
      merges: whether a class that is seen several times in a row is one label.
      ignores_longer: whether the loss of labels that do not fit into their steps is zero, in place of an error.
    """
    steps, batch, classes = inputs.shape
    if batch == 0:
        refuse("batch_size must not be 0")
        return jnp.zeros(0, inputs.dtype)
    if labels.shape[0] != batch or sequence_length.shape != (batch,):
        raise ValueError(f"labels and sequence_length must have {batch} rows, as many as the batch has")
    most = labels.shape[1]
    states = np.arange(2 * most + 1)
    is_label = states % 2 == 1
    path = jnp.where(is_label, jnp.take(labels, np.minimum(states // 2, max(most - 1, 0)), axis=1), classes - 1)
    before = jnp.concatenate([jnp.full((batch, 2), -1, path.dtype), path[:, :-2]], 1)[:, : path.shape[1]]
    again = jnp.logical_and(path == before, merges)
    inside = np.arange(most) < label_lengths[:, None]
    repeats = jnp.sum((labels[:, 1:] == labels[:, :-1]) & inside[:, 1:], 1) if most > 1 and merges else 0
    fits = label_lengths <= sequence_length
    check(lambda: (sequence_length <= steps).all(), f"sequence_length is not at most {steps}")
    check(lambda: (~inside | (labels < classes - 1)).all(), "Saw a non-null label (index >= num_classes - 1)")
    if not ignores_longer:
        check(lambda: fits.all(), "Not enough time for target transition sequence")
    seen = np.arange(steps)[:, None, None] < sequence_length[:, None]
    logs = jax.nn.log_softmax(jnp.where(seen, inputs, 0))
    skips = jnp.where(is_label & ~again, 0.0, _NEVER).astype(logs.dtype)
    stays = jnp.asarray(np.where(is_label & (not merges), _NEVER, 0.0), logs.dtype)

    def shifted(alpha: Any, by: int) -> Any:
        return jnp.concatenate([jnp.full((batch, by), _NEVER, alpha.dtype), alpha[:, :-by]], 1)[:, : alpha.shape[1]]

    def step(alpha: Any, row: Any) -> tuple[Any, None]:
        number, log = row
        came = jnp.logaddexp(alpha + stays, shifted(alpha, 1))
        came = jnp.logaddexp(came, shifted(alpha, 2) + skips)
        after = jnp.maximum(came + jnp.take_along_axis(log, path, 1), _NEVER)
        return jnp.where((number < sequence_length)[:, None], after, alpha), None

    first = jnp.where(states < 2, jnp.take_along_axis(logs[0], path, 1), _NEVER)
    alpha, _ = jax.lax.scan(step, first, (jnp.arange(1, steps), logs[1:]))
    last = (2 * label_lengths)[:, None]
    end = jnp.take_along_axis(alpha, last, 1)[:, 0]
    end_of_label = jnp.take_along_axis(alpha, jnp.maximum(last - 1, 0), 1)[:, 0]
    total = jnp.logaddexp(end, jnp.where(label_lengths > 0, end_of_label, _NEVER))
    losses = jnp.where(label_lengths + repeats <= sequence_length, -total, np.inf)
    return jnp.where((sequence_length > 0) & fits, losses, 0)


def without_repeats(labels: Sequence[int]) -> Labels:
    """The labels without those that are equal to the one before."""
    return [label for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]


def greedy(logits: NDArray[Any], merges: bool, blank: int = -1) -> tuple[Labels, float]:
    """(the labels of the best class of each step, the negative sum of their logits)."""
    best = np.argmax(logits, 1)
    score = -float(np.max(logits, 1).sum()) if len(logits) else 0.0
    found = without_repeats(best.tolist()) if merges else best.tolist()
    return [label for label in found if label != blank % logits.shape[1]], score


def beam_search(logits: NDArray[Any], width: int, top_paths: int) -> Iterator[tuple[Labels, float]]:
    """(labels, the logarithm of their probability) of the likeliest, as far as a search finds them that keeps `width`.

    Raises:
      ArgumentError: fewer are found than are asked for.
    """
    shifted = logits - logits.max(1, keepdims=True) if len(logits) else logits
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    blank = logits.shape[1] - 1
    paths: list[tuple[int, ...]] = [()]
    ends_blank, ends_label = np.zeros(1), np.full(1, -np.inf)
    for log in logs:
        total = np.logaddexp(ends_blank, ends_label)
        longer = total[:, None] + log[None, :blank]
        place = {path: i for i, path in enumerate(paths)}
        same = np.full(len(paths), -np.inf)
        for i, path in enumerate(paths):
            if path:
                longer[i, path[-1]] = ends_blank[i] + log[path[-1]]
                same[i] = ends_label[i] + log[path[-1]]
        for i, path in enumerate(paths):
            parent = place.get(path[:-1]) if path else None
            if parent is not None:
                same[i] = np.logaddexp(same[i], longer[parent, path[-1]])
                longer[parent, path[-1]] = -np.inf
        still = total + log[blank]
        scores = np.concatenate([np.logaddexp(still, same), longer.ravel()])
        kept = np.argsort(-scores, kind="stable")[:width]
        kept = kept[scores[kept] > -np.inf]
        count = len(paths)
        old = [int(i) for i in kept]
        paths = [paths[i] if i < count else (*paths[(i - count) // blank], (i - count) % blank) for i in old]
        ends_blank = np.array([still[i] if i < count else -np.inf for i in old])
        ends_label = np.array([same[i] if i < count else scores[i] for i in old])
    total = np.logaddexp(ends_blank, ends_label)
    if len(paths) < top_paths:
        raise ArgumentError(f"Less leaves in the beam search than requested: {len(paths)} < {top_paths}")
    for i in np.argsort(-total, kind="stable")[:top_paths]:
        yield list(paths[i]), float(total[i])
