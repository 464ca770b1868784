"""The Flight interface of a ps: its variables, their locations and their values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import Refused
from trainband.model.placement import Placement
from trainband.ps.shard.shard import Shard
from trainband.runtime import Lock
from trainband.wire.transport import Tensor


def tensors_of(placement: Placement, addresses: Sequence[str]) -> list[Tensor]:
    """Lists a plan's variables; `addresses` are those of the ps."""
    return [
        Tensor(v.name, v.shape, v.dtype, tuple((s.start, s.stop, addresses[s.ps]) for s in pieces))
        for v, pieces in placement.by_variable().items()
    ]


def rows_of_variable(shard: Shard, lock: Lock, task: str, name: str) -> tuple[int, NDArray[np.generic]]:
    """Returns this ps's rows of a variable as (first row, a copy of the values). Takes the service's lock.

    Raises:
      Refused: it holds none, or rows that are not contiguous.
    """
    mine = [i for i, piece in enumerate(shard.layout.slices) if piece.variable.name == name]
    if not mine:
        raise Refused(f"{task} holds no variable {name!r}; GetFlightInfo lists where each one is.")
    pieces = [shard.layout.slices[i] for i in mine]
    if any(a.stop != b.start for a, b in pairwise(pieces)):
        rows = ", ".join(f"{piece.start}-{piece.stop}" for piece in pieces)
        raise Refused(f"{task} holds rows {rows} of {name!r}, which cannot be read as one piece.")
    with lock:
        version = shard.acquire()
    slices: list[Any] = []
    try:
        slices = shard.layout.unpack(version.arrays())
        if len(mine) == 1:
            return pieces[0].start, np.array(slices[mine[0]])
        return pieces[0].start, np.concatenate([slices[i] for i in mine])
    finally:
        slices = []
        with lock:
            shard.release(version)
