"""Writer: writes one part of a checkpoint, a safetensors file, with a checksum for every tensor."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, serialize_file

from trainband.checkpoint.disk import refusal, remove_quietly, sync
from trainband.checkpoint.manifest import DTYPES, Part, Piece, Stored
from trainband.runtime.regular_files import open_regular

FLUSH_S = 0.2
"""Seconds between two flushes of a file that is being written."""


def write_part(
    directory: Path, file: str, *, ps: int, version: int, pieces: Sequence[tuple[Piece, NDArray[Any]]]
) -> Part:
    """Writes one file of a checkpoint; when it returns, the bytes are on the disk.

    The values are not copied if they are contiguous and little-endian, and must not change during the call.

    Args:
      directory: an existing directory.
      file: the plain name of the new file; an existing one is replaced.
      ps: the ps it belongs to.
      version: updates that the shard has applied.
      pieces: rows and their values, with the piece's dtype and `piece_shape`.

    Returns:
      its entry for the manifest.

    Raises:
      ValueError: values whose shape or dtype is not that of their piece, or a duplicate piece.
      CheckpointError: a file system error; the file is removed.
    """
    values = {piece.key: _little_endian(piece, array) for piece, array in pieces}
    if len(values) < len(pieces):
        raise ValueError(f"one piece is given twice for {file}: {[piece.key for piece, _ in pieces]}.")
    Part(file, sum(array.nbytes for array in values.values()), ps, version, ())  # rejects a bad name before it is used
    path = directory / file
    specs = {
        key: TensorSpec(
            dtype=array.dtype.name, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for key, array in values.items()
    }
    try:
        # The checksums (10 GB/s) are free beside the writing: 3.8 GB/s with or without them.
        with ThreadPoolExecutor(1, thread_name_prefix="checksum") as beside, _flushing(path):
            checksums = beside.map(_checksum, values.values())
            serialize_file(specs, path)
            nbytes = _settle(path, directory)
    except (OSError, SafetensorError) as exc:
        remove_quietly(path)
        cause = exc if isinstance(exc, OSError) else _os_error(exc)
        raise refusal("write", path, cause, sum(array.nbytes for array in values.values())) from exc
    stored = tuple(Stored(piece, piece.key, checksum) for (piece, _), checksum in zip(pieces, checksums, strict=True))
    return Part(file, nbytes, ps, version, stored)


@contextlib.contextmanager
def _flushing(path: Path) -> Iterator[None]:
    """Writes a growing file to the disk meanwhile: left to itself, Linux begins once a tenth of all memory waits."""
    written = threading.Event()

    def flush() -> None:
        while not written.wait(FLUSH_S):
            with contextlib.suppress(OSError):  # it does not exist yet; else the last sync says what is wrong
                sync(path)

    thread = threading.Thread(target=flush, name="trainband-flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        written.set()
        thread.join()


def _little_endian(piece: Piece, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape != piece.piece_shape or array.dtype.name != piece.dtype:
        raise ValueError(
            f"{piece.key} is {piece.dtype}{list(piece.piece_shape)}, got {array.dtype}{list(array.shape)}."
        )
    return np.require(array, DTYPES[piece.dtype].newbyteorder("<"), "C")


def _checksum(array: NDArray[Any]) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(array.reshape(-1).view(np.uint8).data)}"


def _settle(path: Path, directory: Path) -> int:
    """Makes a new file durable and as readable as its directory; safetensors creates it for its owner only."""
    descriptor = open_regular(path, follow=False)
    try:
        with contextlib.suppress(PermissionError):  # a file system without modes
            os.fchmod(descriptor, 0o600 | (directory.stat().st_mode & 0o666))
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _os_error(error: SafetensorError) -> OSError:
    """Extracts the operating system's error from the text in which safetensors wraps it."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code) if number else str(error))
