"""The memory of a table's rows: one record a row, in one growing block.

A record is: id, uses, last step, encoded values, and each array of optimizer state. The block is a mapping that the
kernel extends without copying (`mremap`), in huge pages where it can; with a directory it is a file there, so that a
table can be larger than memory. Slots of removed rows are used again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trainband.errors import ResourceExhausted

FREE = np.uint32(0xFFFFFFFF)
"""The last step of a record without a row."""
LAST_STEP = int(FREE) - 1
_HEAD = 16
_SMALLEST = 64 << 10
_CHUNK = 2 << 20


class Records:
    """Records of one layout.

    Args:
      widths: bytes of each column after the head.
      directory: of the file that holds the records; memory if None.
    """

    def __init__(self, widths: Sequence[int], directory: Path | None = None) -> None:
        offsets = _HEAD + np.concatenate([[0], np.cumsum(widths)])
        names = [f"column_{number}" for number in range(len(widths))]
        self.size = -(-int(offsets[-1]) // 8) * 8
        self._type = np.dtype(
            {
                "names": ["id", "uses", "step", "head", *names],
                "formats": ["<u8", "<u4", "<u4", "<u8", *(f"V{width}" for width in widths)],
                "offsets": [0, 8, 12, 8, *offsets[:-1].tolist()],
                "itemsize": self.size,
            }
        )
        self._file = tempfile.TemporaryFile(dir=directory) if directory is not None else None  # noqa: SIM115
        self._free = np.empty(1024, np.uint32)
        self._free_count = 0
        self.high = 0
        if self._file is not None:
            os.posix_fallocate(self._file.fileno(), 0, _SMALLEST)
            self._map = mmap.mmap(self._file.fileno(), _SMALLEST)
        else:
            self._map = mmap.mmap(-1, _SMALLEST, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view()

    @property
    def live(self) -> int:
        """How many rows there are."""
        return self.high - self._free_count

    @property
    def bytes(self) -> int:
        """The memory that rows have used so far, and the list of free slots."""
        return self.high * self.size + self._free.nbytes

    def allocate(self, count: int) -> NDArray[np.int64]:
        """Slots for new rows.

        Raises:
          ResourceExhausted: the system does not give the memory; nothing has changed.
        """
        again = min(count, self._free_count)
        high = self.high + count - again
        if high > self.capacity:
            self._grow(high)
        self._free_count -= again
        old = self._free[self._free_count : self._free_count + again].astype(np.int64)
        new = np.arange(self.high, high)
        self.high = high
        return np.concatenate([old, new])

    def free(self, slots: NDArray[np.int64]) -> None:
        """Gives the slots of rows back."""
        self.steps[slots] = FREE
        needed = self._free_count + len(slots)
        if needed > len(self._free):
            self._free = np.concatenate([self._free, np.empty(needed, np.uint32)])
        self._free[self._free_count : needed] = slots
        self._free_count = needed

    def is_live(self, start: int, end: int) -> NDArray[np.bool_]:
        """Which slots of a range have a row."""
        live: NDArray[np.bool_] = self.steps[start:end] != FREE
        return live

    def read(self, column: int, slots: NDArray[np.int64], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """A column of rows: (n, width)."""
        data = self.columns[column]
        return data[slots].view(dtype).reshape(len(slots), data.dtype.itemsize // np.dtype(dtype).itemsize)

    def write(self, column: int, slots: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Overwrites a column of rows: (n, width)."""
        self.columns[column][slots] = np.ascontiguousarray(values).view(self.columns[column].dtype).ravel()

    def close(self) -> None:
        """Gives the memory back, and deletes the file."""
        self._release()
        self._map.close()
        if self._file is not None:
            self._file.close()

    def _grow(self, rows: int) -> None:
        size = -(-max(rows, rows + rows // 8) * self.size // _CHUNK) * _CHUNK
        self._release()
        try:
            if self._file is not None:
                os.posix_fallocate(self._file.fileno(), 0, size)
            self._map.resize(size)
        except (OSError, MemoryError) as error:
            raise ResourceExhausted(
                f"the system does not give {size >> 20} MiB for the rows of a table: {error}; limit it with max_rows, "
                "or use more ps."
            ) from error
        finally:
            self._view()

    def _view(self) -> None:
        if self._file is None and len(self._map) >= _CHUNK:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.capacity = len(self._map) // self.size
        table = np.frombuffer(self._map, self._type, self.capacity)
        self.ids: NDArray[np.uint64] = table["id"]
        self.uses: NDArray[np.uint32] = table["uses"]
        self.steps: NDArray[np.uint32] = table["step"]
        self.heads: NDArray[np.uint64] = table["head"]
        self.columns = [table[name] for name in self._type.names or () if name.startswith("column_")]

    def _release(self) -> None:
        """Drops the views of the mapping, which cannot be extended as long as they exist."""
        self.ids = self.heads = np.empty(0, np.uint64)
        self.uses = self.steps = np.empty(0, np.uint32)
        self.columns = []
