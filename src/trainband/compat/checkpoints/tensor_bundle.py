"""TensorFlow's own checkpoint files, `PREFIX.index` and `PREFIX.data-00000-of-00001`: a table of names, and the values.

The table has the form of LevelDB's: blocks of entries whose keys share their beginnings, a block that says where the
blocks are, and a footer that says where that is. An entry says in which data file a value is, and where. All this has
been so since TensorFlow 0.12.
"""

from __future__ import annotations

import math
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.errors import DataLossError, UnimplementedError
from trainband.compat.tf1.input.crc32c import masked_crc32c
from trainband.compat.tf1.protos.wire import messages
from trainband.runtime.regular_files import UnusableFile, read_regular, regular_file

_MESSAGES = messages(
    "bundle",
    """
    BundleSize: int64 size=1
    BundleShape: BundleSize* dim=2
    BundleHead: int32 num_shards=1 int32 endianness=2
    BundleEntry: int32 dtype=1 BundleShape shape=2 int32 shard_id=3 int64 offset=4 int64 size=5 fixed32 crc32c=6
    BundleExtent: int64 start=1 int64 length=2
    BundleSlice: BundleExtent* extent=1
    BundleEntry: BundleSlice* slices=7
    """,
)
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_STRING = 7
_OPAQUE = {20, 21}
"""Types of what only TensorFlow understands: resources and variants."""
MOST_INDEX_BYTES = 256 << 20
MOST_KEY_BYTES = 256 << 20
"""Of all names: each may repeat the beginning of the one before it, which takes no room in the file."""
MOST_SHARDS = 100_000
_MOST_SHIFT = 63
_PART = b"\x00"
"""How the keys of parts of variables begin."""


def index_of(prefix: str) -> Path:
    """The file of the table."""
    return Path(f"{prefix}.index")


def read_bundle(prefix: str) -> dict[str, Any]:
    """All values of a checkpoint that TensorFlow has written, by name; the state of iterators is left out.

    Raises:
      DataLossError: a file is damaged, or says more than is in it.
      UnimplementedError: the table is compressed, or from a machine of another byte order.
    """
    try:
        return _read(prefix, index_of(prefix))
    except (DecodeError, UnusableFile, LookupError, struct.error, TypeError, ValueError, OverflowError) as exc:
        raise DataLossError(None, None, f"{index_of(prefix)} is damaged: {exc}") from exc


def _read(prefix: str, path: Path) -> dict[str, Any]:
    entries = dict(_entries(path))
    head = _MESSAGES["BundleHead"].FromString(entries.pop(b"", b""))
    if head.endianness:
        raise UnimplementedError(None, None, f"{path} has the other byte order")
    if not 0 <= head.num_shards <= MOST_SHARDS:
        raise DataLossError(None, None, f"{path} claims {head.num_shards} files of values")
    shards = _Shards(prefix, head.num_shards or 1)
    known = {key: _MESSAGES["BundleEntry"].FromString(value) for key, value in entries.items()}
    in_order = sorted(known)
    found: dict[str, Any] = {}
    for key, entry in known.items():
        if key.startswith(_PART) or entry.dtype in _OPAQUE:
            continue
        name = key.decode()
        if entry.slices:
            begin = _PART + key + b"\x00\x01"
            parts = [shards.value(known[one], name) for one in _beginning(in_order, begin)]
            found[name] = _joined(entry, parts)
        else:
            found[name] = shards.value(entry, name)
    return found


def _beginning(in_order: Sequence[bytes], begin: bytes) -> Sequence[bytes]:
    """The keys that begin so, of keys in order."""
    at = end = bisect_left(in_order, begin)
    while end < len(in_order) and in_order[end].startswith(begin):
        end += 1
    return in_order[at:end]


class _Shards:
    """The files of values."""

    def __init__(self, prefix: str, count: int) -> None:
        self._paths = [Path(f"{prefix}.data-{shard:05d}-of-{count:05d}") for shard in range(count)]
        self._open: dict[int, Any] = {}

    def value(self, entry: Any, name: str) -> Any:
        """The value of an entry."""
        shape = tuple(one.size for one in entry.shape.dim)
        if entry.shard_id not in range(len(self._paths)) or min(entry.offset, entry.size, *shape) < 0:
            raise DataLossError(None, None, f"{self._paths[0]} does not hold {name}: its offset is invalid")
        path = self._paths[entry.shard_id]
        if entry.shard_id not in self._open:
            if not path.is_file():
                raise DataLossError(None, None, f"there is no {path}, which belongs to the checkpoint")
            with regular_file(path) as file:
                self._open[entry.shard_id] = np.memmap(file, np.uint8, "r") if os.fstat(file.fileno()).st_size else b""
        data = bytes(self._open[entry.shard_id][entry.offset : entry.offset + entry.size])
        if len(data) != entry.size:
            raise DataLossError(None, None, f"{path} ends before {name} does")
        if entry.dtype == _STRING:
            if math.prod(shape) > len(data):  # each takes a byte for its length
                raise DataLossError(None, None, f"{path}: {name} has fewer strings than its shape requires")
            return _strings(data, shape)
        if masked_crc32c(data) != entry.crc32c:
            raise DataLossError(None, None, f"{path}: the checksum of {name} is wrong")
        return np.frombuffer(data, as_dtype(entry.dtype).numpy).reshape(shape).copy()


def _joined(entry: Any, parts: Sequence[Any]) -> Any:
    """The value of a variable that was kept in parts, which are in the order of their places."""
    shape = [one.size for one in entry.shape.dim]
    if math.prod(shape) != sum(part.size for part in parts):
        raise ValueError(f"the parts of a variable of shape {shape} do not add up to it")
    whole = np.empty(shape, as_dtype(entry.dtype).numpy)
    places = sorted(tuple(extent.start for extent in one.extent) for one in entry.slices)
    for starts, part in zip(places, parts, strict=True):
        whole[tuple(slice(at, at + size) for at, size in zip(starts, part.shape, strict=True))] = part
    return whole


def _strings(data: bytes, shape: tuple[int, ...]) -> Any:
    """Text: all lengths, a checksum of them, and all bytes."""
    lengths, at = [], 0
    for _ in range(int(np.prod(shape, dtype=np.int64))):
        length, at = _number(data, at)
        lengths.append(length)
    at += 4
    parts = []
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    if at > len(data):
        raise ValueError("a string ends after the end of the file")
    found = np.empty(len(parts), object)
    found[:] = parts
    return found.reshape(shape)


def _entries(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table, in order."""
    table = read_regular(path, MOST_INDEX_BYTES)
    if len(table) < _FOOTER or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
        raise DataLossError(None, None, f"{path} is not the index of a checkpoint, or is truncated")
    at = len(table) - _FOOTER
    _, _, at = _place(table, at)  # of what describes the table, which is nothing
    end, nbytes = 0, 0
    for _, value in _block(table, at, table, path):
        offset, size, _ = _place(value, 0)
        if offset < end:
            raise DataLossError(None, None, f"{path} has two blocks at one offset")
        end = offset + size
        for key, entry in _block(value, 0, table, path):
            nbytes += len(key)
            if nbytes > MOST_KEY_BYTES:
                raise DataLossError(None, None, f"{path} has names of more than {MOST_KEY_BYTES:,} bytes")
            yield key, entry


def _place(data: bytes, at: int) -> tuple[int, int, int]:
    """Where a block begins, how long it is, and where what is behind this begins."""
    offset, at = _number(data, at)
    size, at = _number(data, at)
    return offset, size, at


def _block(places: bytes, at: int, table: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block, whose place is written at a place."""
    offset, size, _ = _place(places, at)
    if offset + size + 5 > len(table):
        raise DataLossError(None, None, f"{path} is truncated, or an offset in it is invalid")
    block, kind = table[offset : offset + size], table[offset + size]
    if masked_crc32c(table[offset : offset + size + 1]) != struct.unpack_from("<I", table, offset + size + 1)[0]:
        raise DataLossError(None, None, f"{path}: a checksum is wrong")
    if kind:
        raise UnimplementedError(None, None, f"{path} is compressed, which trainband does not read")
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    key, at = b"", 0
    while at < end:
        shared, at = _number(block, at)
        more, at = _number(block, at)
        length, at = _number(block, at)
        if shared > len(key) or at + more + length > end:
            raise DataLossError(None, None, f"{path}: an entry ends after the end of its block")
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + length]
        at += length


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place behind it."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return number, at
        if shift > _MOST_SHIFT:
            raise ValueError("a number is not terminated")
