"""TensorSummary: the norm, the range and the histogram of a variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from trainband.checkpoint.reader import Checkpoint
from trainband.errors import CheckpointError

BINS = 40
MOST_ELEMENTS = 8 << 20
"""Elements in memory at a time, as float64: 64 MiB."""
PREFIX = "params/"
"""Prefix of the names of params in a checkpoint."""


class TensorSummary(Struct, frozen=True):
    """Summary of the values of a variable."""

    name: str
    global_step: int
    """The global step of the checkpoint that they are from, or of the job when they were read."""
    elements: int
    finite: int
    zeros: int
    minimum: float | None
    """The smallest finite value; `None` without any. The fields below also cover finite values only."""
    maximum: float | None
    mean: float | None
    deviation: float | None
    """The standard deviation."""
    norm: float | None
    """The Euclidean norm."""
    counts: tuple[int, ...]
    """Counts in `BINS` bins of equal width from minimum to maximum."""


def summarise(checkpoint: Checkpoint, name: str) -> TensorSummary:
    """Reads a variable from a checkpoint, in pieces, and summarises its values.

    Args:
      checkpoint: the checkpoint.
      name: of the variable, as in the status.

    Raises:
      CheckpointError: it has no such variable, the variable is not numeric, or the file system refuses.
    """
    whole = checkpoint.manifest.tensors.get(PREFIX + name)
    if whole is None:
        raise CheckpointError(f"{checkpoint.path.name} has no variable {name!r}.")
    rows = whole.shape[0] if whole.shape else 1
    per_row = max(1, math.prod(whole.shape[1:]))
    step = max(1, MOST_ELEMENTS // per_row)

    def pieces() -> Iterator[NDArray[Any]]:
        if not whole.shape:
            yield checkpoint.read(PREFIX + name)
            return
        for start in range(0, rows, step):
            yield checkpoint.read(PREFIX + name, start, min(rows, start + step))

    try:
        return summary_of(name, checkpoint.global_step, pieces)
    except (TypeError, ValueError) as exc:
        raise CheckpointError(f"{name} of {checkpoint.path.name} does not hold numbers ({exc}).") from exc


def summary_of(name: str, global_step: int, pieces: Callable[[], Iterator[NDArray[Any]]]) -> TensorSummary:
    """Returns the summary of values that come in pieces; `pieces` is called twice."""
    elements = finite = zeros = 0
    total = squares = 0.0
    low, high = math.inf, -math.inf
    for piece in pieces():
        values = _finite(piece)
        elements += piece.size
        finite += values.size
        zeros += int(np.count_nonzero(values == 0))
        if values.size:
            total += float(values.sum())
            squares += float(np.square(values).sum())
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if not finite:
        return TensorSummary(name, global_step, elements, 0, 0, None, None, None, None, None, ())
    counts = np.zeros(BINS, np.int64)
    for piece in pieces():
        counts += np.histogram(_finite(piece), BINS, (low, high) if high > low else (low - 0.5, low + 0.5))[0]
    mean = total / finite
    return TensorSummary(
        name=name,
        global_step=global_step,
        elements=elements,
        finite=finite,
        zeros=zeros,
        minimum=low,
        maximum=high,
        mean=mean,
        deviation=math.sqrt(max(0.0, squares / finite - mean * mean)),
        norm=math.sqrt(squares),
        counts=tuple(counts.tolist()),
    )


def _finite(piece: NDArray[Any]) -> NDArray[np.float64]:
    values = piece.astype(np.float64).reshape(-1)
    return values[np.isfinite(values)]
