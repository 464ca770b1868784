"""Losses of one replica, scaled so that the sum over all replicas is the loss of the whole batch."""

from __future__ import annotations

from typing import Any

from trainband.compat.ops.table import TABLE
from trainband.compat.tf2.distribute.context import get_strategy, has_strategy, in_cross_replica_context
from trainband.compat.tf2.eager.execute import cast_to, convert, function_of
from trainband.compat.tf2.eager.tensor import Tensor


def _replicas(function: str) -> int:
    """How many replicas there are, for a function that is to be called in one of them."""
    if has_strategy() and in_cross_replica_context():
        raise RuntimeError(
            f"You are calling `{function}` in cross replica context, while it was expected to be called in replica "
            "context."
        )
    return int(get_strategy().num_replicas_in_sync)


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Tensor:
    """The sum of the losses of these examples, divided by the size of the whole batch.

    Raises:
      RuntimeError: the size is not given, and this is no replica.
    """
    loss = convert(per_example_loss)
    if sample_weight is not None:
        loss = loss * cast_to(sample_weight, loss.dtype)
    count = global_batch_size
    if count is None:
        count = loss.aval[0][0] * _replicas("compute_average_loss")
    found: Tensor = function_of(TABLE["tf.reduce_sum"])(loss) / cast_to(count, loss.dtype)
    return found


def scale_regularization_loss(regularization_loss: Any) -> Tensor:
    """The loss, divided by the number of replicas.

    Raises:
      RuntimeError: this is no replica.
    """
    count = float(_replicas("scale_regularization_loss"))
    found: Tensor = function_of(TABLE["tf.reduce_sum"])(convert(regularization_loss)) / count
    return found
