"""Part: one safetensors file of a checkpoint, written by one task and read piece by piece."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, serialize_file

from trainband.checkpoint.disk import refusal, remove_quietly
from trainband.checkpoint.manifest import DTYPES, Part, Piece, Stored
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.runtime.regular_files import UnusableFile, open_regular, require_regular

ALIGNMENT = 64
"""Bytes; what XLA wants of a host buffer to take it without a copy."""

MOST_HEADER_BYTES = 100_000_000
"""Of a part's header; what the safetensors library allows, too."""

# Read and checksummed while it is in the cache: 3.1 GB/s on two cores. One read of the whole piece and the checksum
# after it: 2.5; safe_open: 1.4 (and it knows no bfloat16 in NumPy); a copy out of an mmap: 2.8, and a file that is
# cut short while it is read kills the process with SIGBUS. `cp` of the same file: 2.9.
_CHUNK = 1 << 20

_CODES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""NumPy's name of a dtype to that of the safetensors format."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array whose values are not set and whose first byte lies at a multiple of `ALIGNMENT`."""
    count = math.prod(shape) * dtype.itemsize
    room = np.empty(count + ALIGNMENT, np.uint8)
    offset = -room.ctypes.data % ALIGNMENT
    return room[offset : offset + count].view(dtype).reshape(shape)


def write_part(
    directory: Path, file: str, *, ps: int, version: int, pieces: Sequence[tuple[Piece, NDArray[Any]]]
) -> Part:
    """Writes one file of a checkpoint; when it returns, the bytes are on the disk.

    The values are not copied if they are contiguous and little-endian, and must not change meanwhile.

    Args:
      directory: where; it exists.
      file: the plain name of the new file; one that is there is replaced.
      ps: which parameter server's it is.
      version: updates that the shard has applied.
      pieces: rows and their values, of the piece's dtype and `piece_shape`.

    Returns:
      what the manifest is to say of it.

    Raises:
      ValueError: values that are not of their piece's shape or dtype, or one piece twice.
      CheckpointError: the file system refuses; nothing is left of the file.
    """
    values = {piece.key: _little_endian(piece, array) for piece, array in pieces}
    if len(values) < len(pieces):
        raise ValueError(f"One piece is given twice for {file}: {[piece.key for piece, _ in pieces]}.")
    Part(file, sum(array.nbytes for array in values.values()), ps, version, ())  # refuses a bad name before it is used
    path = directory / file
    specs = {
        key: TensorSpec(
            dtype=array.dtype.name, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for key, array in values.items()
    }
    try:
        # The checksums (10 GB/s) cost nothing beside the writing: 3.8 GB/s with or without them.
        with ThreadPoolExecutor(1, thread_name_prefix="checksum") as beside:
            checksums = beside.map(_checksum, values.values())
            serialize_file(specs, path)
            nbytes = _settle(path, directory)
    except (OSError, SafetensorError) as exc:
        remove_quietly(path)
        cause = exc if isinstance(exc, OSError) else _os_error(exc)
        raise refusal("write", path, cause, sum(array.nbytes for array in values.values())) from exc
    stored = tuple(Stored(piece, piece.key, checksum) for (piece, _), checksum in zip(pieces, checksums, strict=True))
    return Part(file, nbytes, ps, version, stored)


class PartReader:
    """An open file of a checkpoint, whose header has been compared with the manifest; a context manager."""

    def __init__(self, path: Path, part: Part, offsets: dict[str, int] | None = None, *, follow: bool = True) -> None:
        """Nothing is opened yet.

        Args:
          path: the file.
          part: what the manifest says of it.
          offsets: `PartReader.offsets` of an earlier reader of this file, to save reading the header again.
          follow: whether the file may be a symbolic link.
        """
        self.path = path
        self.part = part
        self.offsets: dict[str, int] = offsets or {}
        self._follow = follow
        self._descriptor: int | None = None

    def __enter__(self) -> PartReader:
        """Open the file and compare it with the manifest.

        Raises:
          DamagedCheckpoint: the file is missing, or no regular file, or its size or header is not what the manifest
            says.
          CheckpointError: the file system refuses.
        """
        try:
            self._descriptor = open_regular(self.path, follow=self._follow)
        except OSError as exc:
            raise _unreadable(self.path, exc) from exc
        try:
            check_size(self.path, os.fstat(self._opened()).st_size, self.part)
            self.offsets = self.offsets or self._read_header()
        except BaseException as exc:
            self.__exit__(None, None, None)
            if isinstance(exc, OSError):
                raise _unreadable(self.path, exc) from exc
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, stored: Stored, start: int, stop: int, check: bool = True) -> NDArray[Any]:
        """Rows of a piece, as a fresh array that is writable and aligned to 64 bytes.

        Args:
          stored: the piece.
          start: first row, counted in the whole tensor.
          stop: row after the last.
          check: whether the piece's checksum is verified, for which all of the piece is read.

        Raises:
          ValueError: the rows are not in the piece.
          DamagedCheckpoint: the bytes are not those that were written.
          CheckpointError: there is not enough memory.
        """
        piece = stored.piece
        out = room_for(piece, stop - start)
        self.read_into(out, stored, start, stop, check)
        return out

    def read_into(self, out: NDArray[Any], stored: Stored, start: int, stop: int, check: bool = True) -> None:
        """As `read`, into an array that is contiguous and has the shape and dtype of these rows.

        Raises:
          ValueError: the rows are not in the piece, or the array is of another size.
          DamagedCheckpoint: the bytes are not those that were written.
        """
        piece = stored.piece
        if not piece.start <= start <= stop <= piece.stop:
            raise ValueError(f"Rows {start}:{stop} of {piece.tensor} are not in its piece {piece.start}:{piece.stop}.")
        into = out.reshape(-1).view(np.uint8)
        before, after = (start - piece.start) * piece.row_nbytes, (piece.stop - stop) * piece.row_nbytes
        if into.nbytes != piece.nbytes - before - after or not out.flags.c_contiguous:
            raise ValueError(f"Rows {start}:{stop} of {piece} need a contiguous array of just their size.")
        offset = self.offsets[stored.name]
        if not check:
            self._stream(offset + before, into.nbytes, into, None, stored)
            return
        digest = xxhash.xxh3_128()
        self._stream(offset, before, None, digest, stored)
        self._stream(offset + before, into.nbytes, into, digest, stored)
        self._stream(offset + piece.nbytes - after, after, None, digest, stored)
        self._compare(stored, digest)

    def verify(self, stored: Stored) -> None:
        """Compares a piece with its checksum, in 1 MiB of memory.

        Raises:
          DamagedCheckpoint: the bytes are not those that were written.
        """
        digest = xxhash.xxh3_128()
        self._stream(self.offsets[stored.name], stored.piece.nbytes, None, digest, stored)
        self._compare(stored, digest)

    def _stream(
        self, offset: int, nbytes: int, into: NDArray[np.uint8] | None, digest: xxhash.xxh3_128 | None, stored: Stored
    ) -> None:
        """Bytes of the file, chunk by chunk, into an array or past one, and through a checksum."""
        if nbytes == 0:
            return
        descriptor = self._opened()
        target = (into if into is not None else np.empty(min(nbytes, _CHUNK), np.uint8)).data
        done = 0
        while done < nbytes:
            at = done if into is not None else 0
            chunk = target[at : at + min(_CHUNK, nbytes - done)]
            try:
                count = os.preadv(descriptor, [chunk], offset + done)
            except OSError as exc:
                raise _damaged(self.path, f"cannot be read at {stored.name}: {exc.strerror}") from exc
            if count == 0:
                raise _damaged(self.path, f"ends within {stored.name}, {nbytes - done:,} bytes too early")
            if digest is not None:
                digest.update(chunk[:count])
            done += count

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path} is not open; read it inside the with statement.")
        return self._descriptor

    def _compare(self, stored: Stored, digest: xxhash.xxh3_128) -> None:
        found = f"xxh3_128:{digest.hexdigest()}"
        if found != stored.checksum:
            raise _damaged(
                self.path,
                f"has altered bytes in {stored.name}: their checksum is {found}; the manifest expects "
                f"{stored.checksum}",
            )

    def _read_header(self) -> dict[str, int]:
        """Where in the file each piece begins, by name, once all of the header agrees with the manifest."""
        descriptor = self._opened()
        size = self.part.nbytes
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if length > size - 8:
            raise _damaged(self.path, f"has a header of {length:,} bytes in a file of {size:,}")
        if length > MOST_HEADER_BYTES:
            raise _damaged(self.path, f"has a header of {length:,} bytes, and {MOST_HEADER_BYTES:,} are the most")
        try:
            header = msgspec.json.decode(os.pread(descriptor, length, 8), type=dict[str, _Entry])
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            reason = str(exc) or type(exc).__name__
            raise _damaged(self.path, f"has a header that is not a safetensors file's: {reason}") from exc
        for stored in self.part.pieces:
            self._compare_entry(stored, header.get(stored.name))
        if more := header.keys() - {stored.name for stored in self.part.pieces}:
            raise _damaged(self.path, f"holds {min(more)}, of which the manifest says nothing")
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1].data_offsets):
            if entry.data_offsets[0] != end:
                raise _damaged(self.path, f"has {name} at byte {entry.data_offsets[0]:,}, not at {end:,}")
            end = entry.data_offsets[1]
        if end != size - 8 - length:
            raise _damaged(self.path, f"holds {size - 8 - length:,} bytes of tensors, and its header tells of {end:,}")
        return {name: 8 + length + entry.data_offsets[0] for name, entry in header.items()}

    def _compare_entry(self, stored: Stored, entry: _Entry | None) -> None:
        piece = stored.piece
        if entry is None:
            raise _damaged(self.path, f"does not hold {stored.name}, which the manifest says it does")
        wanted = (_CODES[piece.dtype], piece.piece_shape, piece.nbytes)
        found = (entry.dtype, entry.shape, entry.data_offsets[1] - entry.data_offsets[0])
        if found != wanted:
            raise _damaged(self.path, f"holds {stored.name} as {_described(*found)}, not as {_described(*wanted)}")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a safetensors header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def check_size(path: Path, size: int, part: Part) -> None:
    """Compares a file's size with the manifest.

    Raises:
      DamagedCheckpoint: it is another one.
    """
    if size != part.nbytes:
        raise _damaged(path, f"has {size:,} bytes, not {part.nbytes:,}")


def check_file(path: Path, part: Part, *, follow: bool = True) -> None:
    """Looks whether a file is there with the size that the manifest says, without opening it.

    Raises:
      DamagedCheckpoint: it is missing, no regular file or of another size.
      CheckpointError: the file system refuses.
    """
    try:
        status = path.stat(follow_symlinks=follow)
        require_regular(status, path)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    check_size(path, status.st_size, part)


def room_for(piece: Piece, rows: int) -> NDArray[Any]:
    """An array for so many rows of a piece.

    Raises:
      CheckpointError: there is not enough memory.
    """
    shape = (rows, *piece.shape[1:]) if piece.shape else ()
    try:
        return aligned_empty(shape, DTYPES[piece.dtype])
    except (MemoryError, ValueError, OverflowError) as exc:
        raise CheckpointError(
            f"{rows:,} rows of {piece} are {rows * piece.row_nbytes:,} bytes, for which there is not enough memory."
        ) from exc


def _little_endian(piece: Piece, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape != piece.piece_shape or array.dtype.name != piece.dtype:
        raise ValueError(
            f"{piece.key} is {piece.dtype}{list(piece.piece_shape)}, got {array.dtype}{list(array.shape)}."
        )
    return np.require(array, DTYPES[piece.dtype].newbyteorder("<"), "C")


def _checksum(array: NDArray[Any]) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(array.reshape(-1).view(np.uint8).data)}"


def _settle(path: Path, directory: Path) -> int:
    """Makes a new file durable and as widely readable as its directory; safetensors makes it for its owner only."""
    descriptor = open_regular(path, follow=False)
    try:
        with contextlib.suppress(PermissionError):  # a file system that knows no modes
            os.fchmod(descriptor, 0o600 | (directory.stat().st_mode & 0o666))
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _os_error(error: SafetensorError) -> OSError:
    """What the operating system said, out of the text in which safetensors wraps it."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error))


def _unreadable(path: Path, cause: OSError) -> CheckpointError:
    if cause.errno in (errno.ENOENT, errno.ENOTDIR):
        return _damaged(path, "is missing")
    if isinstance(cause, UnusableFile):
        return _damaged(path, f"cannot be read: {cause.strerror}")
    if cause.errno == errno.ELOOP:
        return _damaged(path, "cannot be read: its symbolic links lead nowhere")
    if cause.errno == errno.EIO:
        return _damaged(path, "cannot be read: " + os.strerror(errno.EIO))
    return refusal("read", path, cause)


def _damaged(path: Path, what: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{path} {what}. Use another checkpoint, or a copy of this one.")


def _described(code: str, shape: tuple[int, ...], nbytes: int) -> str:
    return f"{code}{list(shape)} of {nbytes:,} bytes"
