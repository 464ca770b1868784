"""Changes: the rows of a shard's blocks that a reader with an earlier version lacks.

Rows are compared by their bits, whatever the rule or the optimizer: if a step touches few rows of a table, only these
rows are sent, and an untrained variable is not sent at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ProtocolError
from trainband.model.layout import PACK_BYTES, ShardLayout
from trainband.wire.frame import Bytes
from trainband.wire.messages.following import WHOLE

SAMPLED_ROWS = 64
"""Rows of a block that are compared first: if more than half have changed, the rest is not compared."""
CHUNK_BYTES = 4 << 20
"""Bytes of a block compared at a time."""

Changed = tuple[tuple[int, ...], list[NDArray[Any]]]
"""`trainband.wire.messages.following.Values.changed`, and the body."""


def is_worth_comparing(layout: ShardLayout) -> bool:
    """Whether a shard is so large that sending less of it pays."""
    return layout.nbytes >= PACK_BYTES


def everything(blocks: Sequence[NDArray[Any]]) -> Changed:
    """All of a version."""
    return tuple(WHOLE for _ in blocks), list(blocks)


def changes(layout: ShardLayout, old: Sequence[NDArray[Any]], new: Sequence[NDArray[Any]]) -> Changed:
    """The changes from `old` to `new`, the blocks of two versions of one shard."""
    counts: list[int] = []
    body: list[NDArray[Any]] = []
    for rows, before, after in zip(_rows(layout), old, new, strict=True):
        changed = _changed_rows(_by_rows(before, rows), _by_rows(after, rows))
        if changed is None:
            counts.append(WHOLE)
            body.append(after)
            continue
        counts.append(len(changed))
        if len(changed):
            body += [changed, np.ascontiguousarray(_by_rows(after, rows)[changed])]
    return tuple(counts), body


def applied(
    layout: ShardLayout, held: Sequence[NDArray[Any]], changed: Sequence[int], body: Sequence[Bytes], sender: str
) -> tuple[NDArray[Any], ...]:
    """The blocks after a change. Unchanged ones are the same objects; others are in their own memory.

    Args:
      held: the blocks before; empty if there are none yet.
      body: borrowed.
      sender: for messages.

    Raises:
      ProtocolError: the change does not fit the blocks.
    """
    wrong = ProtocolError(f"{sender} sent changes that do not fit the blocks of its shard.")
    parts = list(body)
    blocks: list[NDArray[Any]] = []
    if len(changed) != len(layout.blocks):
        raise wrong
    for number, (block, rows, count) in enumerate(zip(layout.blocks, _rows(layout), changed, strict=True)):
        wanted = 1 if count == WHOLE else 2 if count else 0
        taken, parts = parts[:wanted], parts[wanted:]
        if len(taken) < wanted or (count != WHOLE and not held):
            raise wrong
        dtype = _dtype(block.dtype)
        if count == WHOLE:
            if taken[0].nbytes != block.size * dtype.itemsize:
                raise wrong
            blocks.append(np.array(taken[0]).view(dtype))
        elif not count:
            blocks.append(held[number])
        else:
            new = held[number].copy()
            by_rows = _by_rows(new, rows)
            width = by_rows.shape[1] * by_rows.itemsize
            if taken[0].nbytes != 4 * count or taken[1].nbytes != count * width:
                raise wrong
            at = taken[0].view(np.uint32)
            if int(at.max()) >= rows:
                raise wrong
            by_rows[at] = taken[1].view(by_rows.dtype).reshape(count, -1)
            blocks.append(new)
    if parts:
        raise wrong
    return tuple(blocks)


def _rows(layout: ShardLayout) -> list[int]:
    """For each block: the number of rows if it is a single slice, else 1."""
    found = []
    for block in layout.blocks:
        shape = layout.slices[block.members[0]].shape
        alone = len(block.members) == 1 and len(shape) > 0 and 0 < shape[0] < 1 << 32 and block.size > 0
        found.append(shape[0] if alone else 1)
    return found


def _by_rows(block: NDArray[Any], rows: int) -> NDArray[Any]:
    """A view of a block as the bits of its rows."""
    raw = block.reshape(-1).view(np.uint8)
    width = raw.nbytes // rows
    for word in (np.uint64, np.uint32, np.uint16):
        if width % np.dtype(word).itemsize == 0:
            return raw.view(word).reshape(rows, -1)
    return raw.reshape(rows, -1)


def _changed_rows(old: NDArray[Any], new: NDArray[Any]) -> NDArray[np.uint32] | None:
    """The numbers of the rows that differ; `None` if the whole block is sent, as sending them saves little."""
    rows, width = len(new), new.shape[1] * new.itemsize
    sample = np.unique(np.linspace(0, rows - 1, SAMPLED_ROWS, dtype=np.int64))
    if (old[sample] != new[sample]).any(axis=1).mean() > 0.5:
        return None
    step = max(1, CHUNK_BYTES // max(1, width))
    found = [
        np.flatnonzero((old[start : start + step] != new[start : start + step]).any(axis=1)) + start
        for start in range(0, rows, step)
    ]
    changed = np.concatenate(found).astype(np.uint32)
    return None if 2 * len(changed) * (width + 4) > rows * width else changed


def _dtype(name: str) -> np.dtype[Any]:
    import jax.numpy as jnp

    return np.dtype(jnp.dtype(name))
