"""Layout: the buffers that hold a shard's slices in memory and on the wire.

A shard is a few contiguous one-dimensional *blocks*, not one buffer for each variable. Slices under
`PACK_BYTES` of one dtype are packed together into one block; a larger slice is a block of its own.
So a step costs the same Python work for 4 variables as for 400 (a handful of blocks), and a large
variable is never copied just to be packed. Packing and unpacking happen inside compiled programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.model.placement import MIB, Placement, Slice

WIRE_DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes that blocks of a wider one may travel in."""
PACK_BYTES = 1 * MIB
"""Slices smaller than this share a block with others of their dtype."""
_MOST_SLICED = 64
"""XLA takes 10 ms to compile each slice of a block, and more than that to fuse it with what uses it."""


@dataclass(frozen=True, slots=True)
class Block:
    """One contiguous buffer: the slices at `members` (indices into the shard's slices), in order."""

    dtype: str
    size: int
    members: tuple[int, ...]
    trained: bool = True


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The blocks of one shard."""

    slices: tuple[Slice, ...]
    blocks: tuple[Block, ...]
    nbytes: int = field(init=False)
    """Bytes of all blocks."""

    def __post_init__(self) -> None:
        nbytes = sum(block.size * jnp.dtype(block.dtype).itemsize for block in self.blocks)
        object.__setattr__(self, "nbytes", nbytes)

    @classmethod
    def of(cls, slices: Sequence[Slice]) -> ShardLayout:
        """Packs the small slices by dtype; leaves each large one alone."""
        packs: dict[tuple[str, bool], list[int]] = {}
        groups: list[list[int]] = []
        for i, piece in enumerate(slices):
            kind = (piece.variable.dtype, piece.variable.trained)
            if piece.nbytes >= PACK_BYTES:
                groups.append([i])
            elif kind in packs:
                packs[kind].append(i)
            else:
                packs[kind] = group = [i]
                groups.append(group)
        blocks = tuple(
            Block(first.dtype, sum(slices[i].size for i in group), tuple(group), first.trained)
            for group in groups
            for first in [slices[group[0]].variable]
        )
        return cls(tuple(slices), blocks)

    def pack(self, slices: Sequence[Any], xp: Any = jnp) -> tuple[Any, ...]:
        """Packs the slices' values into blocks. `xp` is jax.numpy inside a compiled program, else numpy."""
        out = []
        for block in self.blocks:
            flat = [xp.reshape(slices[i], (-1,)) for i in block.members]
            out.append(flat[0] if len(flat) == 1 else xp.concatenate(flat))
        return tuple(out)

    def unpack(self, blocks: Sequence[Any]) -> list[Any]:
        """Returns the value of each slice, in order; views if the blocks are NumPy arrays.

        In place of a block, there may be a tuple of its slices' values.
        """
        out: list[Any] = [None] * len(self.slices)
        for block, values in zip(self.blocks, blocks, strict=True):
            offset = 0
            if isinstance(values, tuple):
                for i, value in zip(block.members, values, strict=True):
                    out[i] = value
                continue
            for i in block.members:
                piece = self.slices[i]
                out[i] = values[offset : offset + piece.size].reshape(piece.shape)
                offset += piece.size
        return out

    def with_views(self, blocks: Sequence[NDArray[Any]]) -> tuple[Any, ...]:
        """Replaces each block of many slices by a tuple of views, one for each slice.

        A compiled program takes them one by one in less time than it takes to compile as many slices of a block: for
        1,000 variables 3 s instead of 38 s, at 8 us a slice and step.
        """
        if all(len(block.members) <= _MOST_SLICED for block in self.blocks):
            return tuple(blocks)
        slices = self.unpack(blocks)
        return tuple(
            values if len(block.members) <= _MOST_SLICED else tuple(slices[i] for i in block.members)
            for block, values in zip(self.blocks, blocks, strict=True)
        )

    def from_wire(self, body: Sequence[NDArray[np.uint8]], wire_dtype: str = "") -> tuple[NDArray[Any], ...] | None:
        """Returns raw bytes as this layout's blocks without copying, `None` if their number or sizes are wrong.

        With a `wire_dtype`, blocks that `narrow` would narrow are read as that dtype.
        """
        if len(body) != len(self.blocks):
            return None
        views = []
        for block, raw in zip(self.blocks, body, strict=True):
            dtype = narrow(block, wire_dtype)
            if raw.nbytes != block.size * dtype.itemsize:
                return None
            views.append(raw.view(dtype))
        return tuple(views)


def narrow(block: Block, wire_dtype: str) -> jnp.dtype:
    """Returns the dtype in which a block travels: of a float32 or float64 one, the narrower of that and `wire_dtype`.

    Model state keeps its own: a worker sends back what it received.
    """
    own = jnp.dtype(block.dtype)
    wide = block.trained and block.dtype in ("float32", "float64")
    return jnp.dtype(wire_dtype) if wide and wire_dtype and jnp.dtype(wire_dtype).itemsize < own.itemsize else own


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The layout of a params pytree over all shards of a job."""

    placement: Placement
    shards: tuple[ShardLayout, ...]

    @classmethod
    def of(cls, placement: Placement) -> JobLayout:
        """Makes the layout of a placement."""
        return cls(placement, tuple(ShardLayout.of(placement.on(ps)) for ps in range(placement.ps_count)))

    def scatter(self, leaves: Sequence[Any], xp: Any = jnp) -> tuple[tuple[Any, ...], ...]:
        """Packs the variables' values (in the variables' order) into the blocks of every shard."""
        by_name = dict(zip(self._names(), leaves, strict=True))
        return tuple(
            shard.pack(
                [
                    by_name[s.variable.name] if s.whole else by_name[s.variable.name][s.start : s.stop]
                    for s in shard.slices
                ],
                xp,
            )
            for shard in self.shards
        )

    def filled(self, values: Iterable[tuple[int, Any]]) -> tuple[tuple[NDArray[Any], ...], ...]:
        """Returns the blocks of every shard, filled one variable after another.

        Args:
          values: the number of each variable and its value, in any order.
        """
        shards = tuple(tuple(np.empty(block.size, block.dtype) for block in shard.blocks) for shard in self.shards)
        places: dict[str, list[tuple[Slice, NDArray[Any]]]] = {name: [] for name in self._names()}
        for shard, blocks in zip(self.shards, shards, strict=True):
            for piece, place in zip(shard.slices, shard.unpack(blocks), strict=True):
                places[piece.variable.name].append((piece, place))
        names = self._names()
        for number, value in values:
            array = np.asarray(value)
            for piece, place in places[names[number]]:
                place[...] = array if piece.whole else array[piece.start : piece.stop]
        return shards

    def gather(self, shards: Sequence[Sequence[Any]], xp: Any = jnp) -> list[Any]:
        """Returns the variables' values, in order, from the blocks of every shard."""
        pieces: dict[str, list[Any]] = {name: [] for name in self._names()}
        values = [iter(layout.unpack(blocks)) for layout, blocks in zip(self.shards, shards, strict=True)]
        for piece in self.placement.slices:  # by variable, then by rows, as in each shard
            pieces[piece.variable.name].append(next(values[piece.ps]))
        return [parts[0] if len(parts) == 1 else xp.concatenate(parts) for parts in pieces.values()]

    def with_views(self, shards: Sequence[Sequence[NDArray[Any]]], wire_dtype: str = "") -> tuple[tuple[Any, ...], ...]:
        """See `ShardLayout.with_views`; blocks that `narrow` would narrow are narrowed, unless they are already."""
        return tuple(
            shard.with_views(
                [
                    value.astype(narrow(block, wire_dtype), copy=False)
                    for value, block in zip(blocks, shard.blocks, strict=True)
                ]
                if wire_dtype
                else blocks
            )
            for shard, blocks in zip(self.shards, shards, strict=True)
        )

    def _names(self) -> list[str]:
        return list(dict.fromkeys(piece.variable.name for piece in self.placement.slices))
