"""The idx file format, in which MNIST is published: a magic number, the dimensions, the bytes.

Source: LeCun, Cortes, Burges, The MNIST database of handwritten digits, section "File formats".
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.runtime.regular_files import read_regular

MOST_BYTES = 2 << 30
"""The largest file, and the largest content; EMNIST, the largest data set in this form, has 0.6 GB."""

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_LOOK_BYTES = 64 << 10


def read(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read a whole idx file of unsigned bytes, gzipped or plain (recognised by its first bytes, not its name).

    Args:
      path: the file.
      ndim: how many dimensions it must have; 1 for labels, 3 for images.

    Returns:
      uint8[...] of ndim dimensions, read-only.

    Raises:
      DataError: the file cannot be read, is damaged, is not an idx file or has another number of dimensions.
    """
    try:
        data = read_regular(path, MOST_BYTES)
    except (OSError, ValueError) as exc:
        raise DataError(f"cannot read {path}: {getattr(exc, 'strerror', None) or exc}.") from exc
    return parse(data, ndim, name=str(path))


def parse(data: bytes, ndim: int, *, name: str) -> NDArray[np.uint8]:
    """Parse the content of an idx file; arguments, result and errors are those of `read`; `name` is for the errors."""
    header = 4 + 4 * ndim
    if data.startswith(_GZIP_MAGIC):
        data = _unpacked(data, header, ndim, name)
    magic = _magic(ndim)
    if data[:4] != magic:
        raise DataError(
            f"{name} starts with {data[:4].hex(' ') or 'nothing'}, but an idx file of unsigned bytes with {ndim} "
            f"dimension(s) starts with {magic.hex(' ')}; is it the right file?"
        )
    if len(data) < header:
        raise DataError(f"{name} ends inside its header, after {len(data):,} of {header:,} bytes; fetch it again.")
    shape = struct.unpack(f">{ndim}I", data[4:header])
    if math.prod(filter(None, shape)) > MOST_BYTES:  # which NumPy refuses, even if another size is 0
        raise DataError(f"{name} has the shape {list(shape)}, which is more than {MOST_BYTES:,} bytes; fetch it again.")
    wanted = header + math.prod(shape)
    if len(data) != wanted:
        state = "is cut off" if len(data) < wanted else "is too long"
        raise DataError(
            f"{name} {state}: shape {list(shape)} takes {wanted} bytes, it has {len(data)}; fetch it again."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _magic(ndim: int) -> bytes:
    """Return the first bytes of an idx file of unsigned bytes."""
    return bytes((0, 0, _UNSIGNED_BYTE, ndim))


def _unpacked(data: bytes, header: int, ndim: int, name: str) -> bytes:
    """Unpack a gzip file up to one byte more than its idx header declares: a small file may expand to any size."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            start = file.read(header)
            if len(start) < header or not start.startswith(_magic(ndim)):
                file.read(_LOOK_BYTES)  # raises if it is not a gzip file at all
                return start
            wanted = math.prod(struct.unpack(f">{ndim}I", start[4:]))
            if wanted > MOST_BYTES:
                raise DataError(f"{name} declares {wanted:,} bytes; at most {MOST_BYTES:,} are read.")
            return start + file.read(wanted + 1)
    except (EOFError, OSError, zlib.error, struct.error, ValueError, OverflowError, MemoryError) as exc:
        if isinstance(exc, DataError):
            raise
        raise DataError(f"{name} is a damaged gzip file ({exc}); fetch it again.") from exc
