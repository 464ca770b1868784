"""`tf.nn`: losses over samples of the classes, embeddings of several rows, normalisation, and CTC."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops import candidates, cross_entropy
from trainband.compat.ops import ctc as formulas
from trainband.compat.ops.table import op_of
from trainband.compat.tf2.eager.execute import cast_to, convert, function_of, run
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known

_gather, _reshape, _concat, _sum = known("tf.gather"), known("tf.reshape"), known("tf.concat"), known("tf.reduce_sum")
_expected = function_of(op_of(candidates.expected_counts))
_sampled_logits = op_of(candidates.sampled_logits)
_sigmoids = known("tf.nn.sigmoid_cross_entropy_with_logits")
_weighted = function_of(op_of(cross_entropy.weighted_cross_entropy))
_log_poisson = function_of(op_of(cross_entropy.log_poisson_loss))

Sample = tuple[Tensor, Tensor, Tensor]
"""The sampled classes, and how often the true and the sampled ones are drawn on average."""


def weighted_cross_entropy_with_logits(labels: Any, logits: Any, pos_weight: Any, name: str | None = None) -> Tensor:
    """The cross entropy of sigmoids, in which positive labels count more."""
    del name
    found: Tensor = _weighted(labels, logits, pos_weight)
    return found


def log_poisson_loss(targets: Any, log_input: Any, compute_full_loss: bool = False, name: str | None = None) -> Tensor:
    """The loss of counts that come from Poisson distributions."""
    del name
    found: Tensor = _log_poisson(targets, log_input, compute_full_loss)
    return found


def _sampler(probabilities: Any, true_classes: Any, count: Any, unique: Any, seed: Any) -> Sample:
    number = int(convert(count))
    counts = candidates.expected(probabilities, number, bool(unique))
    drawn = run(op_of(candidates.candidates), {"num_sampled": number, "unique": bool(unique),
                                               "probabilities": probabilities, "dtype": "int64"}, seed)  # fmt: skip
    return drawn, _expected(convert(true_classes), counts), _expected(drawn, counts)


def log_uniform_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: Any = None, name: Any = None
) -> Sample:
    """Draw classes that are in the order of their frequency."""
    del num_true, name
    return _sampler(candidates.log_uniform(int(range_max)), true_classes, num_sampled, unique, seed)


def uniform_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: Any = None, name: Any = None
) -> Sample:
    """Draw any class as often as any other."""
    del num_true, name
    return _sampler(candidates.uniform(int(range_max)), true_classes, num_sampled, unique, seed)


def _of_sample(
    weights: Any, biases: Any, labels: Any, inputs: Any, count: Any, classes: Any, several: Any, sample: Any,
    hits: bool, seed: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    table = _concat(list(weights), 0) if isinstance(weights, list | tuple) else convert(weights)
    own = _reshape(cast_to(labels, "int64"), [-1, int(several)])
    drawn, true_counts, counts = sample or log_uniform_candidate_sampler(own, several, count, True, classes, seed)
    drawn, flat = cast_to(drawn, "int64"), _reshape(own, [-1])
    logits, shares = run(_sampled_logits, {
        "inputs": inputs, "true_weights": _gather(table, flat), "true_biases": _gather(biases, flat),
        "weights": _gather(table, drawn), "biases": _gather(biases, drawn), "labels": own, "sampled": drawn,
        "true_counts": true_counts, "sampled_counts": counts, "remove_accidental_hits": bool(hits),
    })  # fmt: skip
    return logits, shares


def nce_loss(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: Any, num_classes: Any, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = False, name: str = "nce_loss",
) -> Tensor:  # fmt: skip
    """The loss of telling each example's classes from sampled ones."""
    del name
    logits, shares = _of_sample(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
                                remove_accidental_hits, None)  # fmt: skip
    found: Tensor = _sum(_sigmoids(shares, logits), 1)
    return found


def sampled_softmax_loss(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: Any, num_classes: Any, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = True, seed: Any = None,
    name: str = "sampled_softmax_loss",
) -> Tensor:  # fmt: skip
    """The cross entropy of a softmax over each example's classes and sampled ones."""
    from trainband.compat.tf2.eager.networks import softmax_cross_entropy_with_logits

    del name
    logits, shares = _of_sample(weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
                                remove_accidental_hits, seed)  # fmt: skip
    return softmax_cross_entropy_with_logits(shares, logits)


def batch_norm_with_global_normalization(
    input: Any, mean: Any, variance: Any, beta: Any, gamma: Any, variance_epsilon: Any,  # noqa: A002
    scale_after_normalization: bool, name: str | None = None,
) -> Tensor:  # fmt: skip
    """Batch normalisation with given moments."""
    del name
    scale = gamma if scale_after_normalization else None
    found: Tensor = known("tf.nn.batch_normalization")(input, mean, variance, beta, scale, variance_epsilon)
    return found


def conv_transpose(
    input: Any, filters: Any, output_shape: Any, strides: Any, padding: Any = "SAME", data_format: Any = None,  # noqa: A002
    dilations: Any = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """The transpose of a convolution over one, two or three axes."""
    del name
    tensor = convert(input)
    axes = tensor.ndim - 2
    more = {} if data_format is None else {"data_format": data_format}
    more |= {} if dilations is None else {"dilations": dilations}
    found: Tensor = known(f"tf.nn.conv{axes}d_transpose")(
        tensor, filters, output_shape, strides, padding=padding, **more
    )
    return found


def ctc_loss(
    labels: Any, logits: Any, label_length: Any, logit_length: Any, logits_time_major: bool = True, unique: Any = None,
    blank_index: int | None = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """The negative logarithm of the probability of each sequence's labels; class `blank_index` is the blank."""
    del unique, name
    scores, numbers = convert(logits), cast_to(convert(labels), "int32")
    scores = scores if logits_time_major else known("tf.transpose")(scores, [1, 0, 2])
    classes = scores.aval[0][2]
    blank = (blank_index or 0) % classes
    if blank != classes - 1:  # the formula has it last
        order = [*range(blank), *range(blank + 1, classes), blank]
        scores = _gather(scores, order, axis=2)
        numbers = known("tf.where_v2")(known("tf.greater")(numbers, blank), numbers - 1, numbers)
    found: Tensor = function_of(op_of(formulas.ctc_loss))(
        scores, numbers, cast_to(label_length, "int32"), cast_to(logit_length, "int32")
    )
    return found


def collapse_repeated(labels: Any, seq_length: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Labels without those that repeat the one before, and how many are left."""
    del name
    rows, lengths = np.asarray(convert(labels).numpy()), np.asarray(convert(seq_length).numpy())
    kept = [
        row[:n][np.r_[True, row[1:n] != row[: n - 1]]] if n else row[:0] for row, n in zip(rows, lengths, strict=True)
    ]
    counts = np.array([len(one) for one in kept], lengths.dtype)
    whole = np.zeros((len(rows), int(counts.max(initial=0))), rows.dtype)
    for row, one in zip(whole, kept, strict=True):
        row[: len(one)] = one
    return Tensor(whole), Tensor(counts)
