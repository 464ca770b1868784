"""Operations of networks whose parameters differ in TensorFlow 2."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops import random
from trainband.compat.ops.table import TABLE, op_of
from trainband.compat.tf2.eager.execute import cast_to, convert, function_of, run
from trainband.compat.tf2.eager.tensor import Tensor


def dropout(x: Any, rate: Any, noise_shape: Any = None, seed: int | None = None, name: str | None = None) -> Tensor:
    """Zeroes each element with the probability `rate`, and scales the others up so that the mean stays."""
    del name
    values = {"x": x, "keep_prob": None, "rate": rate, "noise_shape": noise_shape}
    found: Tensor = run(op_of(random.dropout), values, seed)
    return found


def softmax_cross_entropy_with_logits(labels: Any, logits: Any, axis: int = -1, name: str | None = None) -> Tensor:
    """The cross entropy of probabilities and the softmax of logits, along an axis."""
    del name
    scores = convert(logits)
    logs = function_of(TABLE["tf.nn.log_softmax"])(scores, axis=axis)
    found: Tensor = -function_of(TABLE["tf.reduce_sum"])(cast_to(labels, scores.dtype) * logs, axis=axis)
    return found


def embedding_lookup(params: Any, ids: Any, max_norm: Any = None, name: str | None = None) -> Tensor:
    """The rows of a table with these numbers."""
    del name
    numbers = convert(ids)
    found: Tensor = function_of(TABLE["tf.gather"])(params, numbers)
    if max_norm is not None:
        found = function_of(TABLE["tf.clip_by_norm"])(found, max_norm, axes=list(range(numbers.ndim, found.ndim)))
    return found
