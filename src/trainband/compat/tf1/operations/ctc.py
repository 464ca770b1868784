"""Connectionist temporal classification of sparse labels. The decoders run in Python, on what a run computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import array, ctc
from trainband.compat.ops.arrays import ArgumentError
from trainband.compat.ops.dtypes import int32, int64
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.operations.recorder import recorded


def ctc_loss(
    labels: Any,
    inputs: Any = None,
    sequence_length: Any = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: Any = None,
) -> Tensor:
    """The loss of each sequence. The last class is the blank.

    Args:
      labels: sparse, [batch, most labels], int32.
      inputs: [steps, batch, classes], or [batch, steps, classes] without `time_major`.

    Raises:
      TypeError: the labels are not sparse.
    """
    if not isinstance(labels, SparseTensor):
        raise TypeError("Expected labels (first argument) to be a SparseTensor")
    given = convert(inputs if inputs is not None else logits)
    lengths = convert(sequence_length, None if isinstance(sequence_length, Tensor) else int32)
    with name_scope(None, "CTCLoss", None) as scope:
        if not time_major:
            given = recorded(array.transpose)(given, [1, 0, 2])

        batch = given.shape.as_list()[1] if given.shape.ndims == 3 else None

        def lay(_: Any, indices: Any, values: Any, shape: Any) -> list[Any]:
            rows: list[list[int]] = [[] for _ in range(int(shape[0]))]
            for (row, _place), value in zip(indices.tolist(), values.tolist(), strict=True):
                rows[row].append(value)
            if preprocess_collapse_repeated:
                rows = [ctc.without_repeats(row) for row in rows]
            # Sizes are rounded up, so that few different ones are compiled for.
            most = 1 << (max(map(len, rows), default=1) - 1).bit_length() if any(rows) else 1
            found = np.zeros((len(rows), most), np.int32)
            for row, some in zip(found, rows, strict=True):
                row[: len(some)] = some
            return [found, np.array([len(row) for row in rows], np.int32)]

        dense, counts = record_source(
            "CTCLabels", lay, labels.parts, dtypes=[int32, int32], shapes=[[batch or None, None], [batch or None]]
        ).outputs
        return recorded(ctc.ctc_loss)(  # type: ignore[no-any-return]
            given, dense, counts, lengths, bool(ctc_merge_repeated), bool(ignore_longer_outputs_than_inputs), name=scope
        )


Decoder = Callable[[Any], Sequence[tuple[list[int], float]]]
"""From the logits of one sequence to its decodings and their scores."""


def _decoded(
    type_: str, inputs: Any, sequence_length: Any, paths: int, decode: Decoder
) -> tuple[list[SparseTensor], Tensor]:
    given = convert(inputs)
    lengths = convert(sequence_length, None if isinstance(sequence_length, Tensor) else int32)

    def work(_: Any, logits: Any, sizes: Any) -> list[Any]:
        if sizes.shape != logits.shape[1:2]:
            raise InvalidArgumentError(None, None, "len(sequence_length) != batch_size")
        if sizes.size and sizes.max() > len(logits):
            raise InvalidArgumentError(None, None, f"sequence_length(0) <= {len(logits)} does not hold")
        try:
            found = [list(decode(logits[:size, i])) for i, size in enumerate(sizes.tolist())]
        except ArgumentError as exc:
            raise InvalidArgumentError(None, None, str(exc)) from exc
        outputs: list[Any] = []
        for path in range(paths):
            rows = [one[path][0] for one in found]
            places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
            outputs.append(np.array(places, np.int64).reshape(-1, 2))
            outputs.append(np.array([label for row in rows for label in row], np.int64))
            outputs.append(np.array([len(rows), max(map(len, rows), default=0)], np.int64))
        scores = [[score for _, score in one] for one in found]
        return [*outputs, np.array(scores, logits.dtype).reshape(len(found), paths)]

    batch = given.shape.as_list()[1] if given.shape.ndims == 3 else None
    *parts, scores = record_source(
        type_, work, [given, lengths], dtypes=[*[int64] * 3 * paths, given.dtype],
        shapes=[*[[None, 2], [None], [2]] * paths, [batch, paths]],
    ).outputs  # fmt: skip
    return [SparseTensor(*parts[3 * i : 3 * i + 3]) for i in range(paths)], scores


def ctc_greedy_decoder(
    inputs: Any, sequence_length: Any, merge_repeated: bool = True, blank_index: int | None = None
) -> tuple[list[SparseTensor], Tensor]:
    """(the labels of each sequence from the best class of each step, the negative sum of those logits).

    Args:
      blank_index: the class that is the blank; the last one when left out, and counted from there if negative.
    """
    blank = -1 if blank_index is None else int(blank_index)

    def decode(logits: Any) -> list[tuple[list[int], float]]:
        return [ctc.greedy(logits, bool(merge_repeated), blank)]

    return _decoded("CTCGreedyDecoder", inputs, sequence_length, 1, decode)


def ctc_beam_search_decoder(
    inputs: Any, sequence_length: Any, beam_width: int = 100, top_paths: int = 1, merge_repeated: bool = True
) -> tuple[list[SparseTensor], Tensor]:
    """(the likeliest labels of each sequence, one sparse tensor for each rank; the logarithms of their probabilities).

    Args:
      merge_repeated: whether labels that are equal to the one before are left out of what is found.
    """

    def decode(logits: Any) -> list[tuple[list[int], float]]:
        found = ctc.beam_search(logits, int(beam_width), int(top_paths))
        return [(ctc.without_repeats(labels) if merge_repeated else labels, score) for labels, score in found]

    return _decoded("CTCBeamSearchDecoder", inputs, sequence_length, int(top_paths), decode)


def ctc_beam_search_decoder_v2(
    inputs: Any, sequence_length: Any, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """Like `ctc_beam_search_decoder`, with all labels that are found."""
    return ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, merge_repeated=False)
