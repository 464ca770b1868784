"""Losses over a sample of the classes, and the samplers."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops import array, candidates, cross_entropy, math, reductions
from trainband.compat.ops.candidates import Probabilities
from trainband.compat.ops.dtypes import float32, int32, int64
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.operations.embedding import embedding_lookup
from trainband.compat.tf1.operations.recorder import recorded
from trainband.runtime.regular_files import READ_WHOLE, read_regular

Sample = tuple[Tensor, Tensor, Tensor]
"""The sampled classes, and how often the true and the sampled ones are drawn on average."""


def _sampled(true_classes: Any, probabilities: Probabilities, count: int, unique: bool, seed: Any, name: Any) -> Sample:
    counts = candidates.expected(probabilities, int(count), bool(unique))
    expected_counts = recorded(candidates.expected_counts)
    drawn = recorded(candidates.candidates)(int(count), bool(unique), probabilities, seed=seed, name=name)
    return drawn, expected_counts(convert(true_classes), counts), expected_counts(drawn, counts)


def log_uniform_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: int | None = None,
    name: str | None = None,
) -> Sample:  # fmt: skip
    """Draw classes that are in the order of their frequency."""
    del num_true
    return _sampled(true_classes, candidates.log_uniform(int(range_max)), num_sampled, unique, seed, name)


def uniform_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: int | None = None,
    name: str | None = None,
) -> Sample:  # fmt: skip
    """Draw any class as often as any other."""
    del num_true
    return _sampled(true_classes, candidates.uniform(int(range_max)), num_sampled, unique, seed, name)


def fixed_unigram_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, range_max: int, vocab_file: str = "",
    distortion: float = 1.0, num_reserved_ids: int = 0, num_shards: int = 1, shard: int = 0, unigrams: Any = (),
    seed: int | None = None, name: str | None = None,
) -> Sample:  # fmt: skip
    """Draw classes by given frequencies, or by those in the last column of a file.

    Raises:
      ValueError: the frequencies are not those of all classes.
      NotImplementedError: the classes are shared out among several samplers.
    """
    del num_true
    if num_shards != 1 or shard:
        raise NotImplementedError("fixed_unigram_candidate_sampler works with one shard only.")
    counts = list(unigrams)
    if vocab_file:
        lines = read_regular(vocab_file, READ_WHOLE).decode().splitlines()
        counts = [float(line.rpartition(",")[2]) for line in lines if line.strip()]
    if len(counts) + num_reserved_ids != range_max:
        raise ValueError(f"range_max is {range_max}, but there are {len(counts)} frequencies.")
    chances = candidates.by_frequency(counts, distortion, num_reserved_ids)
    return _sampled(true_classes, chances, num_sampled, unique, seed, name)


def all_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: int, unique: bool, seed: int | None = None, name: str | None = None
) -> Sample:
    """All classes."""
    del num_true, unique, seed
    every = recorded(math.cast)(recorded(array.range_)(int(num_sampled), name=name), int64)
    ones = recorded(array.ones_like)
    return every, ones(convert(true_classes), float32), ones(every, float32)


def compute_accidental_hits(
    true_classes: Any, sampled_candidates: Any, num_true: int, seed: int | None = None, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Which sampled classes are true ones: (the example, the place in the sample, a very negative number) of each."""
    del num_true, seed

    def find(_: Any, true: Any, sampled: Any) -> list[Any]:
        rows, places = np.nonzero((true[:, :, None] == sampled[None, None, :]).any(1))
        return [rows, places, np.full(len(rows), np.finfo(np.float32).min)]

    given = [convert(true_classes), convert(sampled_candidates)]
    found = record_source(
        "ComputeAccidentalHits", find, given, dtypes=[int32, int64, float32], shapes=[[None]] * 3, name=name
    ).outputs
    return found[0], found[1], found[2]


def _logits(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: int, num_classes: int, num_true: int,
    sampled_values: Any, remove_accidental_hits: bool, partition_strategy: str, seed: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    true = recorded(math.cast)(labels, int64)
    true = recorded(array.reshape)(true, [-1, num_true])
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(true, num_true, num_sampled, True, num_classes, seed)
    sampled, true_counts, sampled_counts = sampled_values
    sampled = recorded(math.cast)(sampled, int64)
    flat = recorded(array.reshape)(true, [-1])
    ids = recorded(array.concat)([flat, sampled], 0)
    count = recorded(array.size)(flat)
    (true_weights, others), (true_biases, other_biases) = (
        _parted(embedding_lookup(one, ids, partition_strategy), count) for one in (weights, biases)
    )
    return recorded(candidates.sampled_logits)(  # type: ignore[no-any-return]
        inputs, true_weights, true_biases, others, other_biases, true, sampled, true_counts, sampled_counts,
        bool(remove_accidental_hits),
    )  # fmt: skip


def _parted(rows: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The first rows and the others."""
    return rows[:count], rows[count:]  # type: ignore[index]


def nce_loss(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: int, num_classes: int, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = False, partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Tensor:  # fmt: skip
    """The noise-contrastive loss of each example."""
    with name_scope(name):
        logits, shares = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, None,
        )  # fmt: skip
        losses = recorded(cross_entropy.sigmoid_cross_entropy)(labels=shares, logits=logits)
        return recorded(reductions.reduce_sum)(losses, 1)  # type: ignore[no-any-return]


def sampled_softmax_loss(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: int, num_classes: int, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = True, partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss", seed: int | None = None,
) -> Tensor:  # fmt: skip
    """The softmax cross entropy of each example over its own classes and the sampled ones."""
    with name_scope(name):
        logits, shares = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, seed,
        )  # fmt: skip
        return recorded(cross_entropy.softmax_cross_entropy_of_constants)(labels=shares, logits=logits)  # type: ignore[no-any-return]
