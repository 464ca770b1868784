"""Reader: a committed checkpoint on disk, read tensor by tensor, and each of its files."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from trainband.checkpoint.disk import refusal
from trainband.checkpoint.manifest import DTYPES, MANIFEST_FILE, Manifest, Part, Piece, Stored, read_manifest
from trainband.errors import CheckpointError, DamagedCheckpoint, ModelMismatch
from trainband.runtime.aligned import aligned_empty
from trainband.runtime.regular_files import UnusableFile, open_regular, require_regular

PARAMS_PREFIXES = ("params/", "model_state/")
MODEL_PREFIXES = (*PARAMS_PREFIXES, "optimizer/")

MOST_HEADER_BYTES = 100_000_000
"""Size limit of a part's header, as in the safetensors library."""

# Read and checksummed while it is in the cache: 3.1 GB/s on two cores. One read of the whole piece, then the checksum:
# 2.5; safe_open: 1.4 (and it cannot read bfloat16 into NumPy); a copy out of an mmap: 2.8, and if the file is truncated
# during the read, SIGBUS kills the process. `cp` of the same file: 2.9.
_CHUNK = 1 << 20

CODES = {
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
"""Safetensors name of each NumPy dtype name."""

_STEP = re.compile(r"\.?step-(\d{12,})(\..*)?")


class Checkpoint:
    """A committed checkpoint. It never changes, so any number of readers can share it."""

    def __init__(self, path: Path, manifest: Manifest, *, follow: bool = True) -> None:
        """Does not check that they belong together; `Checkpoint.open` does."""
        self._follow = follow
        self.path = path
        self.manifest = manifest
        self._offsets: dict[str, dict[str, int]] = {}

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> Checkpoint:
        """Reads the manifest and checks that every file exists with its full size; does not read the tensors.

        Args:
          path: its directory.
          follow: whether its files may be symbolic links.

        Raises:
          DamagedCheckpoint: a file is missing, not a regular file or of another size, or the manifest is invalid.
          CheckpointError: the path does not exist, or a file system error.
        """
        manifest_path = path / MANIFEST_FILE
        try:
            manifest = read_manifest(manifest_path, follow=follow)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and not path.exists():
                raise CheckpointError(f"there is no checkpoint at {path}.") from exc
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO):
                raise DamagedCheckpoint(
                    f"{manifest_path} cannot be read: {exc.strerror}. Without it, {path} is not a checkpoint."
                ) from exc
            raise refusal("read", manifest_path, exc) from exc
        name = _STEP.fullmatch(path.name)
        if name and int(name[1]) != manifest.global_step:
            raise DamagedCheckpoint(
                f"{manifest_path} has global step {manifest.global_step:,}, unlike the name of its directory. "
                "Use another checkpoint."
            )
        for part in manifest.files:
            check_file(path / part.file, part, follow=follow)
        return cls(path, manifest, follow=follow)

    @property
    def global_step(self) -> int:
        """How many updates ps:0 had applied."""
        return self.manifest.global_step

    @property
    def nbytes(self) -> int:
        """Bytes of its files except the manifest."""
        return self.manifest.nbytes

    def read(self, tensor: str, start: int = 0, stop: int | None = None, prefer_ps: int | None = None) -> NDArray[Any]:
        """Reads rows of a tensor; opens only the files that hold them.

        Args:
          tensor: its name, such as `params/hidden/kernel`.
          start: first row.
          stop: row after the last; by default all rows are read.
          prefer_ps: the ps whose file to read if several hold the same rows.

        Returns:
          a new array, writable and aligned to 64 bytes.

        Raises:
          ValueError: rows that the tensor does not have.
          DamagedCheckpoint: a file does not match the manifest.
          CheckpointError: the tensor does not exist, or not enough memory for it.
        """
        whole = self._whole(tensor)
        stop = whole.rows if stop is None else stop
        if not 0 <= start <= stop <= whole.rows or (not whole.shape and start == stop):
            raise ValueError(f"{whole} has rows 0:{whole.rows}, not {start}:{stop}.")
        out = room_for(whole, stop - start)
        if start < stop:
            self.read_into(out, Piece(tensor, whole.shape, whole.dtype, start, stop), prefer_ps)
        return out

    def read_into(self, out: NDArray[Any], rows: Piece, prefer_ps: int | None = None) -> None:
        """Like `read`, into a contiguous array of these rows' dtype and size.

        Raises:
          ValueError: the array is another one's, or the checkpoint's tensor of that name is another one.
        """
        whole = self._whole(rows.tensor)
        if (whole.shape, whole.dtype) != (rows.shape, rows.dtype) or out.dtype != DTYPES[rows.dtype]:
            raise ValueError(f"{rows} cannot be read from {whole} into an array of {out.dtype}.")
        out = out.reshape(rows.piece_shape)
        for part, stored in self._chosen(rows.tensor, prefer_ps):
            low, high = max(rows.start, stored.piece.start), min(rows.stop, stored.piece.stop)
            if low < high:
                # Reads one header for 10,000 variables, not 10,000.
                with self._reader(part) as reader:
                    self._offsets[part.file] = reader.offsets
                    some = out[low - rows.start : high - rows.start] if rows.shape else out
                    reader.read_into(some, stored, low, high)

    def verify(self) -> list[DamagedCheckpoint]:
        """Reads every byte.

        Returns:
          the errors, in the order of the files; empty if the checkpoint is intact.

        Raises:
          CheckpointError: a file system error.
        """
        found = []
        for part in self.manifest.files:
            try:
                with PartReader(self.path / part.file, part, follow=self._follow) as reader:
                    for stored in part.pieces:
                        try:
                            reader.verify(stored)
                        except DamagedCheckpoint as damage:
                            found.append(damage)
            except DamagedCheckpoint as damage:
                found.append(damage)
        return found

    def require(self, pieces: Iterable[Piece], params_only: bool = False) -> None:
        """Compares the tensors of a model with those here: `params/`, `model_state/` and `optimizer/`.

        Args:
          pieces: the model's tensors, each as one or more pieces.
          params_only: whether to ignore the optimizer.

        Raises:
          ModelMismatch: a tensor is missing on one side or differs in shape or dtype; the message names the first.
        """
        prefixes = PARAMS_PREFIXES if params_only else MODEL_PREFIXES
        wanted = {piece.tensor: piece for piece in pieces if piece.tensor.startswith(prefixes)}
        held = {name: piece for name, piece in self.manifest.tensors.items() if name.startswith(prefixes)}
        for name, piece in wanted.items():
            there = held.get(name)
            if there is None:
                raise self._mismatch(f"the model has {piece}, the checkpoint has no {name}{_near(name, held)}")
            if (there.shape, there.dtype) != (piece.shape, piece.dtype):
                raise self._mismatch(f"the model has {piece}, the checkpoint has {there}")
        for name, piece in held.items():
            if name not in wanted:
                raise self._mismatch(f"the checkpoint has {piece}, the model has no {name}{_near(name, wanted)}")

    def _reader(self, part: Part) -> PartReader:
        return PartReader(self.path / part.file, part, self._offsets.get(part.file), follow=self._follow)

    def _mismatch(self, what: str) -> ModelMismatch:
        return ModelMismatch(
            f"{self.path} is of another model or optimizer: {what}. Continue with those that were saved, "
            "or train into another directory."
        )

    def _whole(self, tensor: str) -> Piece:
        try:
            return self.manifest.tensors[tensor]
        except KeyError:
            near = _near(tensor, self.manifest.tensors)
            raise CheckpointError(f"{self.path} has no tensor {tensor!r}{near}.") from None

    def _chosen(self, tensor: str, prefer_ps: int | None) -> Iterable[tuple[Part, Stored]]:
        """Chooses one place for each range of rows: that of the preferred ps, else the first."""
        chosen: dict[int, tuple[Part, Stored]] = {}
        for part, stored in self.manifest.places[tensor]:
            if stored.piece.start not in chosen or part.ps == prefer_ps != chosen[stored.piece.start][0].ps:
                chosen[stored.piece.start] = (part, stored)
        return chosen.values()


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (but {close[0]})" if close else ""


def buffer_of(checkpoint: Checkpoint, pieces: Sequence[Piece], prefer_ps: int | None = None) -> NDArray[Any]:
    """Returns the values of these pieces, one after the other, as one flat array."""
    parts = [checkpoint.read(p.tensor, p.start, p.stop, prefer_ps=prefer_ps).reshape(-1) for p in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def fill(checkpoint: Checkpoint, pieces: Sequence[Piece], buffer: NDArray[Any], prefer_ps: int | None = None) -> None:
    """Like `buffer_of`, into an array."""
    offset, flat = 0, buffer.reshape(-1)
    for piece in pieces:
        checkpoint.read_into(flat[offset : offset + piece.size], piece, prefer_ps)
        offset += piece.size


class PartReader:
    """An open file of a checkpoint, whose header matches the manifest; a context manager."""

    def __init__(self, path: Path, part: Part, offsets: dict[str, int] | None = None, *, follow: bool = True) -> None:
        """Opens nothing yet.

        Args:
          path: the file.
          part: its entry in the manifest.
          offsets: `PartReader.offsets` of an earlier reader of this file, to avoid reading the header again.
          follow: whether the file may be a symbolic link.
        """
        self.path = path
        self.part = part
        self.offsets: dict[str, int] = offsets or {}
        self._follow = follow
        self._descriptor: int | None = None

    def __enter__(self) -> PartReader:
        """Opens the file and compares it with the manifest.

        Raises:
          DamagedCheckpoint: the file is missing or not a regular file, or its size or header does not match the
            manifest.
          CheckpointError: a file system error.
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

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, stored: Stored, start: int, stop: int, check: bool = True) -> NDArray[Any]:
        """Reads rows of a piece into a new array, writable and aligned to 64 bytes.

        Args:
          stored: the piece.
          start: first row, counted in the whole tensor.
          stop: row after the last.
          check: whether to verify the piece's checksum, which reads the whole piece.

        Raises:
          ValueError: the rows are not in the piece.
          DamagedCheckpoint: the checksum does not match.
          CheckpointError: there is not enough memory.
        """
        piece = stored.piece
        out = room_for(piece, stop - start)
        self.read_into(out, stored, start, stop, check)
        return out

    def read_into(self, out: NDArray[Any], stored: Stored, start: int, stop: int, check: bool = True) -> None:
        """Like `read`, into a contiguous array with the shape and dtype of these rows.

        Raises:
          ValueError: the rows are not in the piece, or the array has another size.
          DamagedCheckpoint: the checksum does not match.
        """
        piece = stored.piece
        if not piece.start <= start <= stop <= piece.stop:
            raise ValueError(f"rows {start}:{stop} of {piece.tensor} are not in its piece {piece.start}:{piece.stop}.")
        into = out.reshape(-1).view(np.uint8)
        before, after = (start - piece.start) * piece.row_nbytes, (piece.stop - stop) * piece.row_nbytes
        if into.nbytes != piece.nbytes - before - after or not out.flags.c_contiguous:
            raise ValueError(f"rows {start}:{stop} of {piece} need a contiguous array of exactly their size.")
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
        """Verifies the checksum of a piece, in 1 MiB of memory.

        Raises:
          DamagedCheckpoint: the checksum does not match.
        """
        digest = xxhash.xxh3_128()
        self._stream(self.offsets[stored.name], stored.piece.nbytes, None, digest, stored)
        self._compare(stored, digest)

    def _stream(
        self, offset: int, nbytes: int, into: NDArray[np.uint8] | None, digest: xxhash.xxh3_128 | None, stored: Stored
    ) -> None:
        """Reads bytes of the file chunk by chunk, into an array or skipping them, and updates a checksum."""
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
        """Returns the offset of each piece in the file, by name, once the whole header agrees with the manifest."""
        descriptor = self._opened()
        size = self.part.nbytes
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if length > size - 8:
            raise _damaged(self.path, f"has a header of {length:,} bytes in a file of {size:,}")
        if length > MOST_HEADER_BYTES:
            raise _damaged(self.path, f"has a header of {length:,} bytes, but {MOST_HEADER_BYTES:,} is the limit")
        try:
            header = msgspec.json.decode(os.pread(descriptor, length, 8), type=dict[str, _Entry])
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError) as exc:
            reason = str(exc) or type(exc).__name__
            raise _damaged(self.path, f"has a header that is not a safetensors file's: {reason}") from exc
        for stored in self.part.pieces:
            self._compare_entry(stored, header.get(stored.name))
        if more := header.keys() - {stored.name for stored in self.part.pieces}:
            raise _damaged(self.path, f"holds {min(more)}, which is not in the manifest")
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1].data_offsets):
            if entry.data_offsets[0] != end:
                raise _damaged(self.path, f"has {name} at byte {entry.data_offsets[0]:,}, not at {end:,}")
            end = entry.data_offsets[1]
        if end != size - 8 - length:
            raise _damaged(self.path, f"holds {size - 8 - length:,} bytes of tensors, but its header describes {end:,}")
        return {name: 8 + length + entry.data_offsets[0] for name, entry in header.items()}

    def _compare_entry(self, stored: Stored, entry: _Entry | None) -> None:
        piece = stored.piece
        if entry is None:
            raise _damaged(self.path, f"does not hold {stored.name}, which the manifest lists")
        wanted = (CODES[piece.dtype], piece.piece_shape, piece.nbytes)
        found = (entry.dtype, entry.shape, entry.data_offsets[1] - entry.data_offsets[0])
        if found != wanted:
            raise _damaged(self.path, f"holds {stored.name} as {_described(*found)}, not as {_described(*wanted)}")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's entry in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def check_size(path: Path, size: int, part: Part) -> None:
    """Compares a file's size with the manifest.

    Raises:
      DamagedCheckpoint: the size differs.
    """
    if size != part.nbytes:
        raise _damaged(path, f"has {size:,} bytes, not {part.nbytes:,}")


def check_file(path: Path, part: Part, *, follow: bool = True) -> None:
    """Checks that a file exists with the size in the manifest, without opening it.

    Raises:
      DamagedCheckpoint: it is missing, not a regular file or of another size.
      CheckpointError: a file system error.
    """
    try:
        status = path.stat(follow_symlinks=follow)
        require_regular(status, path)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    check_size(path, status.st_size, part)


def room_for(piece: Piece, rows: int) -> NDArray[Any]:
    """Allocates an array for this many rows of a piece.

    Raises:
      CheckpointError: there is not enough memory.
    """
    shape = (rows, *piece.shape[1:]) if piece.shape else ()
    try:
        return aligned_empty(shape, DTYPES[piece.dtype])
    except (MemoryError, ValueError, OverflowError) as exc:
        raise CheckpointError(
            f"there is not enough memory for {rows:,} rows of {piece}, {rows * piece.row_nbytes:,} bytes."
        ) from exc


def _unreadable(path: Path, cause: OSError) -> CheckpointError:
    if cause.errno in (errno.ENOENT, errno.ENOTDIR):
        return _damaged(path, "is missing")
    if isinstance(cause, UnusableFile):
        return _damaged(path, f"cannot be read: {cause.strerror}")
    if cause.errno == errno.ELOOP:
        return _damaged(path, "cannot be read: its symbolic links form a loop")
    if cause.errno == errno.EIO:
        return _damaged(path, "cannot be read: " + os.strerror(errno.EIO))
    return refusal("read", path, cause)


def _damaged(path: Path, what: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{path} {what}. Use another checkpoint, or a copy of this one.")


def _described(code: str, shape: tuple[int, ...], nbytes: int) -> str:
    return f"{code}{list(shape)} of {nbytes:,} bytes"
