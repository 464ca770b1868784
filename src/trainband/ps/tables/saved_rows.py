"""The rows of tables as tensors of a checkpoint: `tables/NAME/SHARD-of-SHARDS/ids`, and so on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint
from trainband.checkpoint.manifest import Piece
from trainband.errors import CheckpointError
from trainband.ps.tables.row_chunk import RowChunk
from trainband.rows.table import Table

_ROOT = "tables"


def pieces_of(chunk: RowChunk, table: Table, shard: tuple[int, int]) -> list[tuple[Piece, NDArray[Any]]]:
    """One shard's rows as whole tensors, with their values."""
    state_of = type(table.optimizer).__name__
    state = {f"state/{state_of}/{i}": array for i, array in enumerate(chunk.state)}
    arrays: dict[str, NDArray[Any]] = {
        "ids": chunk.ids,
        "values": chunk.values,
        **state,
        "uses": chunk.uses,
        "steps": chunk.steps,
    }
    return [
        (
            Piece(
                f"{_prefix(table.name, shard)}{name}",
                array.shape,
                array.dtype.name,
                0,
                len(array),
            ),
            np.ascontiguousarray(array),
        )
        for name, array in arrays.items()
    ]


def saved_shards(checkpoint: Checkpoint, table: str, shard: tuple[int, int]) -> list[str]:
    """The prefixes of those tensors of a table in which a shard may have rows: its own, if there were as many shards.

    Empty if the checkpoint has no such table.
    """
    prefix = f"{_ROOT}/{table}/"
    own = _prefix(table, shard)
    found = [
        name.removesuffix("ids")
        for name in checkpoint.manifest.tensors
        if name.startswith(prefix) and name.endswith("/ids") and name.count("/") == prefix.count("/") + 1
    ]
    return [own] if own in found else found


def _prefix(table: str, shard: tuple[int, int]) -> str:
    number, count = shard
    return f"{_ROOT}/{table}/{number:05}-of-{count:05}/"


def saved_tables(checkpoint: Checkpoint) -> set[str]:
    """The names of the tables whose rows a checkpoint has."""
    parts = (name.split("/") for name in checkpoint.manifest.tensors)
    return {name[1] for name in parts if name[0] == _ROOT and name[-1] == "ids"}


def read_shard(checkpoint: Checkpoint, prefix: str, table: Table, prefer_ps: int) -> RowChunk:
    """The rows that one shard saved.

    Raises:
      CheckpointError: their state is that of another optimizer.
    """
    tensors = checkpoint.manifest.tensors
    state, own = f"{prefix}state/", type(table.optimizer).__name__
    saved = {name.removeprefix(state).split("/")[0] for name in tensors if name.startswith(state)}
    if saved - {own}:
        raise CheckpointError(
            f"the rows of table {table.name!r} were trained with {', '.join(saved)}, whose state {own} cannot use; use "
            "the optimizer that was saved."
        )

    def read(name: str) -> NDArray[Any]:
        piece = tensors[prefix + name]
        return checkpoint.read(piece.tensor, 0, piece.rows, prefer_ps=prefer_ps)

    states = sum(name.startswith(state) for name in tensors)
    return RowChunk(
        ids=read("ids"),
        values=read("values"),
        state=tuple(read(f"state/{own}/{i}") for i in range(states)),
        uses=read("uses"),
        steps=read("steps"),
    )
