"""Which shard of a table has the row of an id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainband.rows.random_bits import mixed

_SALT = np.uint64(0xA0761D6478BD642F)
_32 = np.uint64(32)


def shard_of(ids: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """The shard, from 0 to `count` - 1, of each id: a stable hash, independent of the one of the index."""
    shards = mixed(mixed(ids) ^ _SALT)
    shards >>= _32
    shards *= np.uint64(count)
    shards >>= _32
    return shards.view(np.int64)
