"""Compare: how far the tensors of one checkpoint are from those of another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint.manifest import Manifest, Piece
from trainband.checkpoint.reader import PARAMS_PREFIXES, Checkpoint

# Elements: three float64 arrays of this size stay in the cache, and a tensor needs no float64 copy of itself.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor in two checkpoints.

    Attributes:
      tensor: its name.
      first: the tensor in the first checkpoint; `None` if missing.
      second: the tensor in the second checkpoint; `None` if missing.
      identical: whether every bit is the same.
      same: whether it is identical, or every element is within the tolerance.
      largest: the largest absolute difference; infinite if only one of two elements is NaN.
      relative: L2 norm of the difference, divided by that of the first. Both are 0 for tensors that cannot be compared.
    """

    tensor: str
    first: Piece | None
    second: Piece | None
    identical: bool = False
    same: bool = False
    largest: float = 0.0
    relative: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether both checkpoints have it, with one shape and dtype."""
        return self.first is not None and self.first == self.second


def compare(
    first: Checkpoint, second: Checkpoint, *, params_only: bool = False, rtol: float = 0.0, atol: float = 0.0
) -> list[Change]:
    """Compares every tensor, holding one pair in memory at a time.

    If each ps has its own copy, such as an optimizer's count, all are compared, and the largest change counts.

    Args:
      first, second: the checkpoints.
      params_only: whether to compare `params/` and `model_state/` alone.
      rtol, atol: elements are the same if |a - b| <= atol + rtol * |b|, and NaN is the same as NaN; with both 0, every
        bit must be the same.

    Returns:
      the tensors that cannot be compared, then the others, the most changed first.

    Raises:
      DamagedCheckpoint: a file does not match its manifest.
      CheckpointError: a file system error.
    """
    ours, theirs = first.manifest.tensors, second.manifest.tensors
    names = [*ours, *(name for name in theirs if name not in ours)]
    if params_only:
        names = [name for name in names if f"{name}/".startswith(PARAMS_PREFIXES)]
    changes = []
    for name in names:
        change = Change(name, ours.get(name), theirs.get(name))
        if change.comparable:
            several = {*owners(first.manifest, name), *owners(second.manifest, name)}
            chosen: Sequence[int | None] = sorted(several) or [None]
            change = max(
                (
                    _change(change, first.read(name, prefer_ps=ps), second.read(name, prefer_ps=ps), rtol, atol)
                    for ps in chosen
                ),
                key=lambda one: (not one.same, not one.identical, one.relative, one.largest),
            )
        changes.append(change)
    return sorted(changes, key=lambda one: (one.comparable, one.identical, -one.relative, -one.largest, one.tensor))


def owners(manifest: Manifest, tensor: str) -> tuple[int, ...]:
    """Returns the ps that each have their own copy; empty if the tensor is stored once or in ranges of rows."""
    places = manifest.places[tensor]
    if len({stored.piece.start for _, stored in places}) == len(places):
        return ()
    return tuple(sorted({part.ps for part, _ in places}))


def _change(change: Change, first: NDArray[Any], second: NDArray[Any], rtol: float, atol: float) -> Change:
    if all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in _chunks(first, second)):
        return replace(change, identical=True, same=True)
    close = rtol > 0 or atol > 0
    largest = difference = norm = 0.0
    for a, b in _chunks(first, second):
        a, b = _wide(a), _wide(b)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
            distance = np.where(np.isnan(distance), np.inf, distance)
            close = close and bool((distance <= atol + rtol * np.nan_to_num(np.abs(b), posinf=0.0)).all())
        largest = max(largest, float(distance.max()))
        difference = math.hypot(difference, _norm(distance))
        norm = math.hypot(norm, _norm(a))
    relative = difference / norm if norm and not math.isinf(difference) else math.inf if difference else 0.0
    return replace(change, same=close, largest=largest, relative=relative)


def _chunks(first: NDArray[Any], second: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    a, b = first.reshape(-1), second.reshape(-1)
    for start in range(0, a.size, _CHUNK):
        yield a[start : start + _CHUNK], b[start : start + _CHUNK]


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _norm(values: NDArray[Any]) -> float:
    """L2 norm of the values that are not NaN."""
    magnitude = np.abs(values)
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.sum(np.where(np.isnan(magnitude), 0.0, magnitude) ** 2)))
