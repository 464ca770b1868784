"""JobVersion: the values of all variables of a job that a reader has at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.model.contents import tensor_of
from trainband.ps.reader.job_layout import FoundJob


@dataclass(frozen=True, slots=True)
class JobVersion:
    """Immutable.

    Attributes:
      versions: how many updates each shard had applied.
      tensors: the params and the model state, by their names in a checkpoint. Arrays unchanged since the previous
        version are the same objects.
      changed: the names of the others.
      job: the job they belong to.
      asked_at: when the shards were asked, by the reader's clock: later values are not included.
    """

    versions: tuple[int, ...]
    tensors: Mapping[str, NDArray[Any]]
    changed: frozenset[str]
    job: str
    asked_at: float

    @property
    def global_step(self) -> int:
        """The version of the first shard."""
        return self.versions[0]

    @property
    def is_cut(self) -> bool:
        """Whether all shards have the same version, as in a checkpoint.

        Otherwise, later shards are some updates ahead or behind, as a worker of an asynchronous job would see them.
        """
        return len(set(self.versions)) == 1


class Assembler:
    """Builder of tensors from all shards' blocks, only where these changed."""

    def __init__(self, job: FoundJob) -> None:
        self._tensors: dict[str, NDArray[Any]] = {}
        self._blocks: list[tuple[NDArray[Any], ...]] = [() for _ in job.shards]
        self._pieces: dict[str, list[tuple[int, int, int, int]]] = {tensor_of(v): [] for v in job.variables}
        """Each tensor's pieces by row: shard, block, and start and end in the block."""
        self._shapes = {tensor_of(variable): variable.shape for variable in job.variables}
        starts: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        for number, shard in enumerate(job.shards):
            for at, block in enumerate(shard.blocks):
                offset = 0
                for member in block.members:
                    piece = shard.slices[member]
                    starts[tensor_of(piece.variable), piece.start] = (number, at, offset, offset + piece.size)
                    offset += piece.size
        for name, start in sorted(starts):
            self._pieces[name].append(starts[name, start])

    def assemble(self, shards: Sequence[tuple[NDArray[Any], ...]]) -> tuple[Mapping[str, NDArray[Any]], frozenset[str]]:
        """Returns the tensors of these blocks and the names of those that have changed."""
        before = self._blocks
        fresh = {
            (number, at)
            for number, blocks in enumerate(shards)
            for at, block in enumerate(blocks)
            if at >= len(before[number]) or before[number][at] is not block
        }
        changed = frozenset(
            name for name, pieces in self._pieces.items() if any((number, at) in fresh for number, at, *_ in pieces)
        )
        self._tensors = {
            name: self._made(name, shards) if name in changed else self._tensors[name] for name in self._pieces
        }
        self._blocks = list(shards)
        return self._tensors, changed

    def _made(self, name: str, shards: Sequence[tuple[NDArray[Any], ...]]) -> NDArray[Any]:
        parts = [shards[number][at][start:end] for number, at, start, end in self._pieces[name]]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(self._shapes[name])
