"""A shard: all that one ps holds, in versions that never change once they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.errors import Refused
from trainband.ps.layout import ShardLayout
from trainband.ps.program import Blocks, CompiledProgram


class ParamsVersion:
    """The params after `number` updates. Immutable; `readers` counts who is sending or saving them."""

    __slots__ = ("blocks", "number", "readers")

    def __init__(self, number: int, blocks: Blocks) -> None:
        self.number = number
        self.blocks = blocks
        self.readers = 0

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The blocks as NumPy views, without a copy. Let go of them before the reading ends."""
        return tuple(np.asarray(block) for block in self.blocks)


class Shard:
    """Params, optimizer state and the program that updates them. Not thread-safe: the service holds its lock.

    Memory: the params, the optimizer state, and one older version of the params, whose memory the next
    update writes into if nobody reads it any more.
    """

    def __init__(self, layout: ShardLayout, program: CompiledProgram) -> None:
        self.layout = layout
        self._program = program
        self._current: ParamsVersion | None = None
        self._previous: ParamsVersion | None = None
        self._state: Blocks = ()

    @property
    def initialised(self) -> bool:
        """Whether the chief has given the first values."""
        return self._current is not None

    @property
    def version(self) -> int:
        """How many updates were applied; 0 before the first values too."""
        return self._current.number if self._current is not None else 0

    def initialise(self, blocks: Sequence[NDArray[Any]]) -> None:
        """Takes the first values. They are copied."""
        if self._current is not None:
            raise RuntimeError("this shard has values already")
        params = tuple(jnp.array(block, copy=True) for block in blocks)
        self._state = self._program.initialise(params)
        self._current = ParamsVersion(0, params)

    def update(self, gradient: Sequence[NDArray[Any]]) -> None:
        """Applies one update. `gradient` is only read, and not kept."""
        current = self._require()
        spare = self._previous
        self._previous = None
        if spare is None or spare.readers:
            scratch = tuple(jnp.empty_like(block) for block in current.blocks)
        else:
            scratch = spare.blocks
        params, self._state = self._program.update(current.blocks, self._state, gradient, scratch)
        self._previous = current
        self._current = ParamsVersion(current.number + 1, params)

    def acquire(self) -> ParamsVersion:
        """The newest version, for reading; give it back with `release`."""
        current = self._require()
        current.readers += 1
        return current

    @staticmethod
    def release(version: ParamsVersion) -> None:
        """Ends a reading."""
        version.readers -= 1

    def _require(self) -> ParamsVersion:
        if self._current is None:
            raise Refused("this ps has no values yet: the chief has not initialised it.")
        return self._current


def all_finite(blocks: Sequence[NDArray[Any]]) -> bool:
    """Whether no element is NaN or infinite. Measured: 6 us for 80,000 float32."""
    for block in blocks:
        if block.dtype.kind == "f" and not bool(np.isfinite(block).all()):
            return False
        if block.dtype.kind == "V" and not bool(_finite_any(block)):  # bfloat16: NumPy has no arithmetic for it
            return False
    return True


_finite_any = jax.jit(lambda block: jnp.isfinite(block).all())
