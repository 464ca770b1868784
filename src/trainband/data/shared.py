"""Shared data: workers take pieces of each epoch as they finish the last, and pieces of a lost worker go to others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data.batches import common_length
from trainband.data.pieces import SourceSettings
from trainband.data.readers import Arrays, Files, Indexed, Reader
from trainband.data.shared_batches import SharedBatches
from trainband.errors import DataError

_FILE_BATCHES = 1  # files a piece by default: one file is much already
_PIECE_BATCHES = 8  # a lease request takes less than 1 ms, eight steps take more
_LEAST_PIECES = 32  # an epoch, so that a slow worker does not hold up the others for long at the end


def shared(
    source: int | NDArray[Any] | Sequence[NDArray[Any]] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int,
    load: Callable[[Any], Any] | None = None,
    piece: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    drop_remainder: bool = False,
    name: str = "data",
) -> SharedBatches:
    """Divides data among the workers of a job as they train: each takes the next piece when it has finished its last.

    In every epoch of the job each example goes to one worker. Fast workers take more, workers that join take part, and
    a lost worker's pieces go to the others: then some examples may be trained on twice, see `SharedBatches.report`.
    Call it in the same way on every worker.

    Use it for workers that run at their own speeds, and for a single process. Workers that compute in lockstep
    (`MultiWorkerMirrored`) refuse it: they need as many batches each, from `Batches(..., shard=(index, count))`.

    Args:
      source: a number of examples; or an array, [n, ...], whose batches are arrays; or several, where row i of each
        makes example i and batches are tuples; or the paths of files.
      batch_size: examples a batch.
      load: for a number, `load(indices) -> batch`, of intp[batch_size] (fewer in a short last batch). For files,
        `load(path)` returns the content of one: a tuple, dict or array whose arrays have a first axis of examples; or
        any other iterable, of examples that are stacked. Not for arrays.
      piece: examples a piece (files, for files), which a worker takes at a time. Default: 8 batches, but at most
        a 32nd of the examples and at least one batch; one file.
      epochs: how many for the whole job; None means without end.
      seed: of the order, at least 0. The order of an epoch is a function of seed and epoch alone; it is that of
        `Batches`. Files are shuffled, the examples inside a file are not.
      shuffle: whether to change the given order.
      drop_remainder: leave out the rows that do not fill a batch when the last epoch ends. Within the epochs, batches
        are filled across pieces, files and epochs.
      name: distinguishes several shared sources of a job.

    Raises:
      DataError: an argument is invalid.
    """
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1, got {batch_size}.")
    reader, examples, files = _reader(source, load, batch_size)
    if piece is None:
        spread = max(batch_size, min(_PIECE_BATCHES * batch_size, examples // _LEAST_PIECES))
        piece = _FILE_BATCHES if files else spread
    settings = SourceSettings(examples, piece, epochs, seed, shuffle)
    if drop_remainder and not files and epochs is not None and epochs * examples < batch_size:
        raise DataError(
            f"the shared data {name!r} has {epochs * examples} examples in all, too few for one batch of {batch_size}; "
            "make batch_size smaller, or pass drop_remainder=False."
        )
    return SharedBatches(reader, settings, batch_size=batch_size, drop_remainder=drop_remainder, name=name)


def _reader(source: Any, load: Callable[[Any], Any] | None, batch_size: int) -> tuple[Reader, int, bool]:
    """Returns the reader of a source, how many units it has, and whether these are files.

    Raises:
      DataError: source and load do not fit together.
    """
    if isinstance(source, int) and not isinstance(source, bool):
        if load is None:
            raise DataError("shared: a number of examples needs load=, a function from their indices to a batch.")
        return Indexed(load), source, False
    several = [source] if hasattr(source, "shape") else list(source) if isinstance(source, Sequence) else []
    if several and all(hasattr(array, "shape") for array in several):
        if load is not None:
            raise DataError("shared: load= is for a number of examples or for files; rows are taken from arrays.")
        arrays = [np.asarray(array) for array in several]
        return Arrays(arrays, batch_size, bare=hasattr(source, "shape")), common_length(arrays), False
    if several and not isinstance(source, str) and all(isinstance(path, str | os.PathLike) for path in several):
        if load is None:
            raise DataError("shared: files need load=, a function from a path to the file's content.")
        return Files(several, load, batch_size), len(several), True
    raise DataError(
        "shared: give a number of examples, one or more arrays, or a sequence of paths of files; got "
        f"{'nothing' if source == [] or source == () else type(source).__name__}."
    )
