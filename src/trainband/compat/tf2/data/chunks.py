"""Chunks: as many elements as a function computes at once."""

from __future__ import annotations

import time

from trainband.compat.tf2.data.blocks import Block, Blocks, joined
from trainband.compat.tf2.data.function import Applied

PATIENCE_S = 0.005
"""How long single elements are gathered, so that those of a slow source are not held back."""
SMALL_BYTES = 1 << 16
"""Elements of no more bytes are gathered."""


def chunks(blocks: Blocks, work: Applied) -> Blocks:
    """The elements of blocks, as many at a time as are computed at once."""
    for block in _gathered(blocks, work):
        most = block.size if block.size == 1 else work.most(block)
        for begin in range(0, block.size, most):
            yield block.part(begin, min(block.size, begin + most))


def _gathered(blocks: Blocks, work: Applied) -> Blocks:
    """The blocks, with single elements joined where they can be computed together."""
    after: Block | None = None
    while True:
        block = next(blocks, None) if after is None else after
        after = None
        if block is None:
            return
        most = work.most(block) if block.size == 1 and _is_small(block) else 1
        held, failure = [block], None
        deadline = time.monotonic() + PATIENCE_S
        while len(held) < most and time.monotonic() < deadline:
            try:
                other = next(blocks, None)
            except Exception as exc:  # it comes after those before it
                failure = exc
                break
            if other is None:
                break
            if other.size != 1 or other.structure != block.structure or other.shapes() != block.shapes():
                after = other
                break
            held.append(other)
        yield joined(held)
        if failure is not None:
            raise failure


def _is_small(block: Block) -> bool:
    return bool(sum(leaf.nbytes for leaf in block.element(0)) <= SMALL_BYTES)
