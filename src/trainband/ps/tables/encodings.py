"""How the values of a row are kept: as float32, or in fewer bytes. Optimizer state is float32 always."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.ps.tables.records import Records
from trainband.rows.random_bits import bits, mixed
from trainband.rows.table import ValueType

Floats = NDArray[np.float32]
Slots = NDArray[np.int64]


class Encoding(Protocol):
    """Reads and writes the values of rows, in the first columns of their records.

    Values are rounded to the nearest; with random keys of the rows, up or down at random so that the mean is kept.
    """

    def widths(self, dim: int) -> tuple[int, ...]:
        """Bytes of each column."""
        ...

    def read(self, records: Records, slots: Slots) -> Floats:
        """Values: (n, dim)."""
        ...

    def write(self, records: Records, slots: Slots, values: Floats, keys: NDArray[np.uint64] | None) -> None:
        """Writes values (n, dim)."""
        ...


class Float32:
    """Values as they are."""

    def widths(self, dim: int) -> tuple[int, ...]:
        """Bytes of each column."""
        return (4 * dim,)

    def read(self, records: Records, slots: Slots) -> Floats:
        """Values: (n, dim)."""
        return records.read(0, slots)

    def write(self, records: Records, slots: Slots, values: Floats, keys: NDArray[np.uint64] | None) -> None:  # noqa: ARG002
        """Writes values (n, dim)."""
        records.write(0, slots, values)


class BFloat16:
    """The upper half of a float32."""

    def widths(self, dim: int) -> tuple[int, ...]:
        """Bytes of each column."""
        return (2 * dim,)

    def read(self, records: Records, slots: Slots) -> Floats:
        """Values: (n, dim)."""
        whole = records.read(0, slots, np.uint16).astype(np.uint32)
        whole <<= np.uint32(16)
        values: Floats = whole.view(np.float32)
        return values

    def write(self, records: Records, slots: Slots, values: Floats, keys: NDArray[np.uint64] | None) -> None:
        """Writes values (n, dim)."""
        whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
        if keys is None:
            added = whole >> np.uint32(16)
            added &= np.uint32(1)
            added += np.uint32(0x7FFF)
        else:
            added = bits(keys, values.shape[1]) >> np.uint32(16)
        added += whole
        added >>= np.uint32(16)
        records.write(0, slots, added.astype(np.uint16))


class Int8:
    """Integers from -127 to 127, times a float32 scale of the row."""

    def widths(self, dim: int) -> tuple[int, ...]:
        """Bytes of each column."""
        return (4, dim)

    def read(self, records: Records, slots: Slots) -> Floats:
        """Values: (n, dim)."""
        values: Floats = records.read(1, slots, np.int8).astype(np.float32)
        values *= records.read(0, slots)
        return values

    def write(self, records: Records, slots: Slots, values: Floats, keys: NDArray[np.uint64] | None) -> None:
        """Writes values (n, dim)."""
        largest = np.maximum(values.max(1, keepdims=True), -values.min(1, keepdims=True))
        scale = largest / np.float32(127)
        levels = values / np.where(scale == 0, np.float32(1), scale)
        if keys is None:
            np.rint(levels, out=levels)
        else:
            levels += (bits(keys, values.shape[1]) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
            np.floor(levels, out=levels)
        np.clip(levels, -127, 127, out=levels)
        records.write(0, slots, scale)
        records.write(1, slots, levels.astype(np.int8))


ENCODINGS: dict[ValueType, Encoding] = {"float32": Float32(), "bfloat16": BFloat16(), "int8": Int8()}


def rounding_keys(heads: NDArray[np.uint64], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Random keys that are a function of a row and its update."""
    return mixed(heads ^ mixed(ids))
