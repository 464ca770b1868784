"""CRC-32C, the checksum of record files, by NumPy.

A checksum is linear over bits: that of a block is the exclusive or of what each byte contributes at its distance from
the end. So a block is one look-up in a table and one reduction.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78
_BLOCK = 512
"""Bytes that are looked up at once: the table takes 512 KiB, which fits into a cache."""


@functools.cache
def _tables() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[list[int]]]:
    """(of one byte; flat, of a byte at each place of a block; the parts of a checksum moved by a block)."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, (one >> 1) ^ np.uint32(_POLYNOMIAL), one >> 1).astype(np.uint32)
    places = np.empty([_BLOCK, 256], np.uint32)
    places[-1] = one
    for place in range(_BLOCK - 2, -1, -1):
        later = places[place + 1]
        places[place] = (later >> 8) ^ one[later & 255]
    # A checksum that is carried on enters the first four bytes of the next block.
    return one, places.reshape(-1), [places[i].tolist() for i in range(4)]


_OFFSETS = np.arange(_BLOCK, dtype=np.int32) * 256


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    _, flat, (t0, t1, t2, t3) = _tables()
    array = np.frombuffer(data, np.uint8)
    first = len(array) % _BLOCK
    crc = 0xFFFFFFFF
    if first:
        head = array[:first]
        parts = flat.take(_OFFSETS[_BLOCK - first :] + head)
        crc = _carried(crc, first) ^ int(np.bitwise_xor.reduce(parts))
    if len(array) > first:
        blocks = array[first:].reshape(-1, _BLOCK)
        for part in np.bitwise_xor.reduce(flat.take(_OFFSETS + blocks), axis=1).tolist():
            crc = t0[crc & 255] ^ t1[crc >> 8 & 255] ^ t2[crc >> 16 & 255] ^ t3[crc >> 24] ^ part
    return crc ^ 0xFFFFFFFF


@functools.lru_cache(maxsize=_BLOCK)
def _carried(crc: int, count: int) -> int:
    """A checksum after so many zero bytes."""
    one = _tables()[0]
    for _ in range(count):
        crc = (crc >> 8) ^ int(one[crc & 255])
    return crc


def masked_crc32c(data: bytes) -> int:
    """The checksum as record files store it: rotated, and something added."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
