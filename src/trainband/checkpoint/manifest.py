"""Manifest: what a checkpoint holds, which file holds which rows, and how far the training was.

The manifest decides what is read. Records validate themselves on creation, by the program or from a file, so a manifest
that decodes describes every row of every tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.runtime.formatting import PLAIN
from trainband.runtime.regular_files import UnusableFile, read_regular

FORMAT = 1
MANIFEST_FILE = "manifest.json"
MOST_MANIFEST_BYTES = 64 << 20
"""Size limit of a manifest, about 200,000 pieces: a larger one is neither written nor read."""
MOST_DIMENSIONS = 32
MOST_NUMBER = (1 << 63) - 1
"""Largest number of steps, rows or bytes: the limit of other programs and NumPy."""
LATEST_S = 253_370_764_800.0
"""Seconds since 1970 at the beginning of the year 9999: later times cannot be displayed."""

DTYPES: dict[str, np.dtype[Any]] = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (
        *(np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz),
        ml_dtypes.float8_e8m0fnu,
    )
}
"""Dtypes of a safetensors file, by NumPy's name."""

_CHECKSUM = re.compile(r"xxh3_128:[0-9a-f]{32}")
_PLAIN = re.compile(rf"\A{PLAIN}*\Z")


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows [start, stop) of a tensor; a scalar is one row.

    Attributes:
      tensor: its name, such as `params/hidden/kernel`.
      shape: that of the whole tensor.
      dtype: a name of `DTYPES`.

    Raises:
      ValueError: an invalid name, shape, dtype or range.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if any(part in ("", ".", "..") for part in self.tensor.split("/")):
            raise ValueError(f"tensor {self.tensor!r} has a part that is empty, '.' or '..'")
        if not _PLAIN.search(self.tensor) or self.tensor == "__metadata__":
            raise ValueError(f"tensor {self.tensor!r} is not a name that a safetensors file can hold")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"shape of {self.tensor} has a negative number: {list(self.shape)}")
        if len(self.shape) > MOST_DIMENSIONS or math.prod(size or 1 for size in self.shape) > MOST_NUMBER // 16:
            raise ValueError(f"shape of {self.tensor} is larger than an array can be")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype of {self.tensor} is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if not 0 <= self.start <= self.stop <= self.rows or (self.start == self.stop and self.rows):
            raise ValueError(f"start and stop of {self.tensor} are {self.start} and {self.stop} of {self.rows} rows")

    @property
    def rows(self) -> int:
        """Rows of the whole tensor."""
        return self.shape[0] if self.shape else 1

    @property
    def whole(self) -> bool:
        """Whether these are all rows of the tensor."""
        return self.start == 0 and self.stop == self.rows

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Shape of these rows alone."""
        return (self.stop - self.start, *self.shape[1:]) if self.shape else ()

    @property
    def size(self) -> int:
        """Elements in these rows."""
        return math.prod(self.piece_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * DTYPES[self.dtype].itemsize

    @property
    def key(self) -> str:
        """Name of these rows in a safetensors file: the tensor's name, or `name[start:stop]`."""
        return self.tensor if self.whole else f"{self.tensor}[{self.start}:{self.stop}]"

    def __str__(self) -> str:
        """Name, dtype and shape of the whole tensor: `params/hidden/kernel float32[784,100]`."""
        return f"{self.tensor} {self.dtype}[{','.join(map(str, self.shape))}]"


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece as stored in a file.

    Attributes:
      name: its key in the safetensors file; see `Piece.key`.
      checksum: `xxh3_128:` and 32 hexadecimal digits, of its little-endian bytes.

    Raises:
      ValueError: the name is not the piece's key, or the checksum has another form.
    """

    piece: Piece
    name: str
    checksum: str

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if self.name != self.piece.key:
            raise ValueError(f"name is {self.name!r}, but these rows are called {self.piece.key!r}")
        if not _CHECKSUM.fullmatch(self.checksum):
            raise ValueError(f"checksum of {self.name} is {self.checksum!r}, not xxh3_128: and 32 hexadecimal digits")


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a checkpoint.

    Attributes:
      file: its plain name.
      nbytes: its exact size.
      ps: which parameter server wrote it.
      version: how many updates that shard had applied.

    Raises:
      ValueError: a file name that could lead elsewhere, a negative number, a duplicate piece, more bytes than the file.
    """

    file: str
    nbytes: int
    ps: int
    version: int
    pieces: tuple[Stored, ...]

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if not is_plain_name(self.file) or self.file == MANIFEST_FILE:
            raise ValueError(f"file {self.file!r} is not the plain name of a file beside the manifest")
        _not_negative(nbytes=self.nbytes, ps=self.ps, version=self.version)
        names = {stored.name for stored in self.pieces}
        if len(names) < len(self.pieces):
            raise ValueError(f"pieces of {self.file} have a duplicate name")
        held = sum(stored.piece.nbytes for stored in self.pieces)
        if held > self.nbytes:
            raise ValueError(f"nbytes of {self.file} is {self.nbytes:,}, but its pieces have {held:,} bytes")


class WorkerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Saved state of a worker.

    Attributes:
      task: its name, `worker:1`.
      steps: its completed steps.
      position: its position in the data, as JSON text; opaque here.

    Raises:
      ValueError: a negative number of steps.
    """

    task: str
    steps: int
    position: str

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        _not_negative(steps=self.steps)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Content of one checkpoint.

    Attributes:
      global_step: the version of ps:0.
      created_at: seconds since 1970.
      trainband: the version that wrote it.
      strategy: the strategy it was trained under; informative.
      parts: the files, one from each ps.
      workers: the state of each worker, by task.
      sources: positions of data sources that workers share, as JSON texts; opaque here.
      trainings: the global step at which each training run of the script began.
      complete: whether the training had made all its updates.
      metrics: of a validation of these exact params, if there was one.
      worker_part: a file with the workers' own tensors.
      last_step: where the training was asked to end; `None` if it was not.
      used_up: whether it is complete because it ran out of batches: given more, it continues.
      format: version of this record's fields.

    Raises:
      ValueError: the parts do not hold every row of every tensor, or contradict one another.
    """

    global_step: int
    created_at: float
    trainband: str
    strategy: str
    parts: tuple[Part, ...]
    workers: dict[str, WorkerEntry] = {}
    sources: dict[str, str] = {}
    trainings: tuple[int, ...] = ()
    complete: bool = False
    metrics: dict[str, float] = {}
    worker_part: Part | None = None
    last_step: int | None = None
    used_up: bool = False
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format}, but this version of trainband writes format {FORMAT}")
        _not_negative(global_step=self.global_step)
        if not 0 <= self.created_at < LATEST_S:
            raise ValueError(f"created_at is {self.created_at}, which is not a time since 1970")
        if any(not 0 <= step <= MOST_NUMBER for step in self.trainings):
            raise ValueError(f"trainings has an invalid step: {list(self.trainings)}")
        if self.last_step is not None:
            _not_negative(last_step=self.last_step)
        if len({part.file for part in self.files}) < len(self.files):
            raise ValueError("parts have a duplicate file")
        for places in self.places.values():
            _check_tiling([stored.piece for _, stored in places])

    @property
    def files(self) -> tuple[Part, ...]:
        """Every file beside the manifest: the parts, and the workers' own if there is one."""
        return self.parts if self.worker_part is None else (*self.parts, self.worker_part)

    @cached_property
    def places(self) -> dict[str, tuple[tuple[Part, Stored], ...]]:
        """Where each tensor's rows are stored. Rows stored in several files are listed for each."""
        found: dict[str, list[tuple[Part, Stored]]] = {}
        for part in self.files:
            for stored in part.pieces:
                found.setdefault(stored.piece.tensor, []).append((part, stored))
        return {tensor: tuple(places) for tensor, places in found.items()}

    @cached_property
    def tensors(self) -> dict[str, Piece]:
        """Every tensor as one piece, by name, in the order of the files."""
        firsts = (places[0][1].piece for places in self.places.values())
        return {
            piece.tensor: piece if piece.whole else Piece(piece.tensor, piece.shape, piece.dtype, 0, piece.rows)
            for piece in firsts
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all files except the manifest."""
        return sum(part.nbytes for part in self.files)


class _Head(msgspec.Struct):
    """The part of a manifest that all formats share."""

    format: int
    trainband: str = "a later version"


def encode(manifest: Manifest) -> bytes:
    """Encodes a manifest as indented JSON. Metrics that are not finite are left out: JSON cannot express them.

    Raises:
      CheckpointError: it would be larger than `decode` accepts.
    """
    finite = {name: value for name, value in manifest.metrics.items() if math.isfinite(value)}
    if len(finite) < len(manifest.metrics):
        manifest = msgspec.structs.replace(manifest, metrics=finite)
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    if len(data) > MOST_MANIFEST_BYTES:
        raise CheckpointError(
            f"the manifest would have {len(data):,} bytes, but {MOST_MANIFEST_BYTES:,} is the limit; join variables or "
            "use fewer ps."
        )
    return data


def decode(data: bytes, where: str) -> Manifest:
    """Decodes a manifest.

    Args:
      data: the content of the file.
      where: the file, for the error.

    Raises:
      DamagedCheckpoint: it is not a manifest or contradicts itself; the message names the field.
    """
    if len(data) > MOST_MANIFEST_BYTES:
        raise DamagedCheckpoint(f"{where} has {len(data):,} bytes, but {MOST_MANIFEST_BYTES:,} is the limit.")
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise DamagedCheckpoint(
                f"{where} has format {head.format}, but this version of trainband reads format {FORMAT}; "
                f"read it with trainband {head.trainband}, which wrote it."
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as exc:
        reason = str(exc) or type(exc).__name__
        raise DamagedCheckpoint(f"{where} is not a checkpoint's manifest: {reason}. Use another checkpoint.") from exc


def read_manifest(path: Path, *, follow: bool = True) -> Manifest:
    """Reads the manifest at a path.

    Args:
      path: the file.
      follow: whether it may be a symbolic link.

    Raises:
      DamagedCheckpoint: it is not a regular file, too large, or not a manifest.
      OSError: it is missing, or the file system fails.
    """
    try:
        data = read_regular(path, MOST_MANIFEST_BYTES, follow=follow)
    except UnusableFile as exc:
        raise DamagedCheckpoint(f"{path} is not a checkpoint's manifest: {exc.strerror}.") from exc
    return decode(data, str(path))


def is_plain_name(name: str) -> bool:
    """Whether a file of this name stays in the directory it is joined to, on any operating system."""
    return (
        bool(name)
        and name not in (".", "..")
        and not re.search(r"[/\\]|\.\.", name)
        and _PLAIN.search(name) is not None
    )


def _not_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} is {number}, which is negative")
        if number > MOST_NUMBER:
            raise ValueError(f"{name} is {number}, which is larger than {MOST_NUMBER}")


def _check_tiling(pieces: Iterable[Piece]) -> None:
    """Rejects pieces of one tensor that differ in kind, overlap without being the same rows, or leave rows out."""
    ordered = sorted(pieces, key=lambda piece: (piece.start, piece.stop))
    first = ordered[0]
    end, last = 0, None
    for piece in ordered:
        if (piece.shape, piece.dtype) != (first.shape, first.dtype):
            raise ValueError(f"pieces of one tensor disagree on shape or dtype: {first} and {piece}")
        if (piece.start, piece.stop) == last:
            continue
        if piece.start < end:
            raise ValueError(f"pieces of {piece} overlap: row {piece.start} is in two of them")
        if piece.start > end:
            raise ValueError(f"pieces of {piece} leave out rows {end} to {piece.start - 1}")
        end, last = piece.stop, (piece.start, piece.stop)
    if end < first.rows:
        raise ValueError(f"pieces of {first} leave out rows {end} to {first.rows - 1}")
