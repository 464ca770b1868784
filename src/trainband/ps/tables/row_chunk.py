"""Rows as they travel: to checkpoints, to another ps, to those that serve a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import CheckpointError
from trainband.ps.tables.records import LAST_STEP


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChunk:
    """Some rows of a table.

    Attributes:
      ids: (n,).
      values: (n, dim).
      state: of the optimizer, one (n, width) array for each that it names.
      uses: (n,) updates of each row.
      steps: (n,) of the last update of each row.
    """

    ids: NDArray[np.uint64]
    values: NDArray[np.float32]
    state: tuple[NDArray[np.float32], ...]
    uses: NDArray[np.uint32]
    steps: NDArray[np.uint32]

    @classmethod
    def joined(cls, chunks: Sequence[RowChunk], dim: int, widths: Sequence[int]) -> RowChunk:
        """All rows in one chunk; `dim` and `widths` are those of the table, which may have none."""
        nothing = cls(
            ids=np.zeros(0, np.uint64),
            values=np.zeros((0, dim), np.float32),
            state=tuple(np.zeros((0, width), np.float32) for width in widths),
            uses=np.zeros(0, np.uint32),
            steps=np.zeros(0, np.uint32),
        )
        columns = zip(*(chunk.arrays() for chunk in chunks or [nothing]), strict=True)
        ids, values, *state, uses, steps = (np.concatenate(column) for column in columns)
        return cls(ids=ids, values=values, state=tuple(state), uses=uses, steps=steps)

    def arrays(self) -> list[NDArray[Any]]:
        """Its arrays, as `from_bytes` takes them."""
        return [self.ids, self.values, *self.state, self.uses, self.steps]

    @classmethod
    def from_bytes(cls, body: Sequence[NDArray[np.uint8]], dim: int, widths: Sequence[int]) -> RowChunk | None:
        """The chunk of these bytes, as views; `None` if their sizes are not those of such rows."""
        rows = body[0].nbytes // 8
        bytes_a_row = [8, 4 * dim, *(4 * width for width in widths), 4, 4]
        if [raw.nbytes for raw in body] != [rows * size for size in bytes_a_row]:
            return None
        ids, values, *state, uses, steps = body
        return cls(
            ids=ids.view(np.uint64),
            values=values.view(np.float32).reshape(rows, dim),
            state=tuple(raw.view(np.float32).reshape(rows, width) for raw, width in zip(state, widths, strict=True)),
            uses=uses.view(np.uint32),
            steps=steps.view(np.uint32),
        )

    def check(self, table: str, dim: int, widths: Sequence[int]) -> None:
        """Checks that the rows are those of a table with `dim` values and state of these widths.

        Raises:
          CheckpointError: they are not.
        """
        if self.values.shape[1:] != (dim,):
            raise CheckpointError(
                f"the rows of table {table!r} have {self.values.shape[-1]} values in the checkpoint, and {dim} here; "
                "build the table with the dim that was saved."
            )
        found = [part.shape[-1] for part in self.state]
        if found != list(widths):
            raise CheckpointError(
                f"the optimizer state of table {table!r} has arrays of {found} values a row in the checkpoint, and of "
                f"{list(widths)} here; use the optimizer that was saved."
            )
        lengths = {len(self.ids), len(self.values), len(self.uses), len(self.steps), *map(len, self.state)}
        if len(lengths) > 1:
            raise CheckpointError(f"the arrays of table {table!r} have different numbers of rows: {sorted(lengths)}.")
        is_valid = self.ids.dtype == np.uint64 and int(self.steps.max(initial=0)) <= LAST_STEP
        if not is_valid or len(np.unique(self.ids)) < len(self.ids):
            raise CheckpointError(
                f"a chunk of table {table!r} has an id twice, a step beyond {LAST_STEP}, or ids that are not uint64."
            )
