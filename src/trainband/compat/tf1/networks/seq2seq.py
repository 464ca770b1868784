"""Losses over sequences, and the recurrent decoders of `tf.contrib.legacy_seq2seq`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops import array, cross_entropy, math, reductions
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.networks.recurrence import static_rnn
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope

Loss = Callable[..., Any]
TINY = 1e-12
"""What is added to a sum of weights that may be 0."""

_cast, _add_n = recorded(math.cast), recorded(math.add_n)
_reshape, _sum = recorded(array.reshape), recorded(reductions.reduce_sum)


def _losses(logits: Any, targets: Any, softmax_loss_function: Loss | None) -> Any:
    if softmax_loss_function is not None:
        return softmax_loss_function(labels=targets, logits=logits)
    return recorded(cross_entropy.sparse_softmax_cross_entropy)(labels=targets, logits=logits)


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Loss | None = None,
    name: str | None = None,
) -> Any:
    """The weighted cross entropy of logits [batch, time, classes], averaged over time, over the batch, or both.

    Raises:
      ValueError: an argument has another rank.
    """
    scores, wanted, shares = convert(logits), convert(targets), convert(weights)
    for tensor, rank in ((scores, 3), (wanted, 2), (shares, 2)):
        if tensor.shape.ndims not in (None, rank):
            raise ValueError(f"Logits must be of rank 3, targets and weights of rank 2, got {tensor}.")
    with get_default_graph().name_scope(name or "sequence_loss"):
        classes = recorded(array.shape)(scores)[2]
        found = _losses(_reshape(scores, [-1, classes]), _reshape(wanted, [-1]), softmax_loss_function)
        found = found * _reshape(shares, [-1])
        if average_across_timesteps and average_across_batch:
            return _sum(found) / (_sum(shares) + TINY)
        found = _reshape(found, recorded(array.shape)(scores)[0:2])
        if not (average_across_timesteps or average_across_batch):
            return found
        axis = 1 if average_across_timesteps else 0
        return _sum(found, [axis]) / (_sum(shares, [axis]) + TINY)


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Loss | None = None,
    name: str | None = None,
) -> Any:
    """The weighted cross entropy of each example, from lists over time.

    Raises:
      ValueError: the lists are not of one length.
    """
    if len(targets) != len(logits) or len(weights) != len(logits):
        raise ValueError(
            f"Lengths of logits, weights, and targets must be the same {len(logits)}, {len(weights)}, {len(targets)}."
        )
    with get_default_graph().name_scope(name or "sequence_loss_by_example"):
        each = [
            _losses(one, _reshape(wanted, [-1]), softmax_loss_function) * weight
            for one, wanted, weight in zip(logits, targets, weights, strict=True)
        ]
        total = _add_n(each)
        return total / (_add_n([convert(one) for one in weights]) + TINY) if average_across_timesteps else total


def legacy_sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Loss | None = None,
    name: str | None = None,
) -> Any:
    """The weighted cross entropy, from lists over time."""
    with get_default_graph().name_scope(name or "sequence_loss"):
        total = _sum(
            sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        )
        if not average_across_batch:
            return total
        return total / _cast(recorded(array.shape)(targets[0])[0], total.dtype)


def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Callable[[Any, int], Any] | None = None,
    scope: Any = None,
) -> Any:
    """(the outputs of each step, the last state); with `loop_function`, inputs follow from the outputs before."""
    with variable_scope(scope or "rnn_decoder") as opened:
        state, outputs = initial_state, list[Any]()
        for number, given in enumerate(decoder_inputs):
            inputs = given
            if loop_function is not None and outputs:
                with variable_scope("loop_function", reuse=True):
                    inputs = loop_function(outputs[-1], number)
            if number:
                opened.reuse_variables()
            output, state = cell(inputs, state)
            outputs.append(output)
        return outputs, state


def basic_rnn_seq2seq(
    encoder_inputs: Sequence[Any], decoder_inputs: Sequence[Any], cell: Any, dtype: Any = "float32", scope: Any = None
) -> Any:
    """(the outputs of a decoder, its last state), which begins with the last state of an encoder like it."""
    with variable_scope(scope or "basic_rnn_seq2seq"):
        _, state = static_rnn(copy.deepcopy(cell), encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)
