"""Arrays that JAX uses on the CPU without a copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes; XLA's requirement for using a host buffer without a copy."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns an uninitialised array whose first byte is at a multiple of `ALIGNMENT`."""
    count = math.prod(shape) * dtype.itemsize
    room = np.empty(count + ALIGNMENT, np.uint8)
    offset = -room.ctypes.data % ALIGNMENT
    return room[offset : offset + count].view(dtype).reshape(shape)
