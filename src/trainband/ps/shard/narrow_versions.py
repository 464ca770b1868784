"""NarrowVersions: a shard's versions in a narrower dtype, as the answers to pushes send them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainband.model.layout import ShardLayout, narrow
from trainband.ps.program.compiled_program import Blocks
from trainband.ps.program.gradients import narrowed
from trainband.ps.shard.shard import ParamsVersion
from trainband.runtime import Lock


class NarrowVersion:
    """The narrow blocks of one version; `readers` counts those sending them."""

    __slots__ = ("blocks", "readers")

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.readers = 0


class NarrowVersions:
    """Converts each version once, however many workers get it. Thread-safe; needs no other lock.

    Memory: the narrow blocks of two versions, and of each further one that is still being sent; it is reused.

    Args:
      layout: of the shard.
      wire_dtype: the narrower dtype; empty: none.
      lock: one of its own.
    """

    def __init__(self, layout: ShardLayout, wire_dtype: str, lock: Lock) -> None:
        dtypes = [narrow(block, wire_dtype) for block in layout.blocks]
        self._narrow = [
            (block.size, dtype) if dtype.name != block.dtype else None
            for block, dtype in zip(layout.blocks, dtypes, strict=True)
        ]
        self.nbytes = sum(block.size * dtype.itemsize for block, dtype in zip(layout.blocks, dtypes, strict=True))
        """Bytes of a version as sent."""
        self._lock = lock
        self._known: dict[int, NarrowVersion] = {}
        """By serial number of the version."""

    def acquire(self, version: ParamsVersion) -> NarrowVersion:
        """Returns a version for reading while it is itself read; give it back with `release`."""
        with self._lock:
            found = self._known.get(version.serial)
            if found is None:
                wide = tuple(b for b, into in zip(version.blocks, self._narrow, strict=True) if into)
                found = self._known[version.serial] = NarrowVersion(narrowed(wide, self._spare()))
            found.readers += 1
            return found

    def release(self, acquired: NarrowVersion) -> None:
        """Ends a reading."""
        with self._lock:
            acquired.readers -= 1

    def arrays(self, version: ParamsVersion, acquired: NarrowVersion) -> tuple[NDArray[Any], ...]:
        """Returns all blocks as sent, as NumPy views, without a copy. Drop them before the reading ends."""
        converted = iter(acquired.blocks)
        blocks = (next(converted) if into else b for b, into in zip(version.blocks, self._narrow, strict=True))
        return tuple(np.asarray(block) for block in blocks)

    def _spare(self) -> Blocks:
        """Returns memory for another version: that of one without readers, except the newest."""
        newest = max(self._known, default=0)
        idle = [serial for serial, known in self._known.items() if not known.readers and serial != newest]
        free = [self._known.pop(serial).blocks for serial in idle]
        return free[0] if free else tuple(jnp.empty(*into) for into in self._narrow if into)
