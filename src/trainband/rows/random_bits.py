"""Random bits that are a pure function of a key and a counter, so that order, process and restart do not matter.

Source: SplitMix64 (Steele, Lea, Flood 2014): its output number i from a key is a mix of key + i * GAMMA.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit integers in which every bit of the output depends on every bit of the input."""
    half = keys >> _30
    out = keys ^ half
    out *= _FIRST
    np.right_shift(out, _27, out=half)
    out ^= half
    out *= _SECOND
    np.right_shift(out, _31, out=half)
    out ^= half
    return out


def bits(keys: NDArray[np.uint64], width: int) -> NDArray[np.uint32]:
    """`width` random 32-bit integers for each key: (n,) -> (n, width)."""
    counters = np.arange(1, (width + 1) // 2 + 1, dtype=np.uint64) * GAMMA
    return mixed(keys[:, np.newaxis] + counters).view(np.uint32)[:, :width]
