"""The ids of a batch, in which most occur several times, and the gradients of each summed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse


def unique(ids: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """The distinct ids in order of their first occurrence, and for each given id, its place among them.

    Arrow's hash table does 13 to 27 million ids a second, `np.unique` by sorting 3 to 13.
    """
    encoded = pa.array(ids.reshape(-1)).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy()


def summed(gradients: NDArray[np.float32], places: NDArray[np.int32], count: int) -> NDArray[np.float32]:
    """Sums of the gradients (n, dim) of the same place: (count, dim).

    A sparse product does 9 to 55 million rows of 16 a second, `np.add.reduceat` of sorted ones 2 to 7.
    """
    total = len(places)
    ones, ends = np.ones(total, np.float32), np.arange(total + 1, dtype=np.int32)
    sums: NDArray[np.float32] = sparse.csc_array((ones, places, ends), shape=(count, total)) @ gradients
    return sums
