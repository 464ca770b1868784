"""Checkpoint: one committed checkpoint on the disk, whose tensors can be read one by one."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainband.checkpoint.disk import refusal
from trainband.checkpoint.manifest import MANIFEST_FILE, Manifest, Part, Piece, Stored, read_manifest
from trainband.checkpoint.part import PartReader, check_file, room_for
from trainband.errors import CheckpointError, DamagedCheckpoint, ModelMismatch

PARAMS_PREFIXES = ("params/", "model_state/")
MODEL_PREFIXES = (*PARAMS_PREFIXES, "optimizer/")

_STEP = re.compile(r"\.?step-(\d{12,})(\..*)?")


class Checkpoint:
    """A checkpoint that has been committed. It never changes, so any number of readers can share it."""

    def __init__(self, path: Path, manifest: Manifest, *, follow: bool = True) -> None:
        """Take them to belong together; `Checkpoint.open` looks."""
        self._follow = follow
        self.path = path
        self.manifest = manifest
        self._offsets: dict[str, dict[str, int]] = {}

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> Checkpoint:
        """Reads the manifest and looks whether every file is there whole; the tensors are not read.

        Args:
          path: its directory.
          follow: whether its files may be symbolic links.

        Raises:
          DamagedCheckpoint: a file is missing, no regular file or of another size, or the manifest is not one.
          CheckpointError: there is nothing at the path, or the file system refuses.
        """
        manifest_path = path / MANIFEST_FILE
        try:
            manifest = read_manifest(manifest_path, follow=follow)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) and not path.exists():
                raise CheckpointError(f"There is no checkpoint at {path}.") from exc
            if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EIO):
                raise DamagedCheckpoint(
                    f"{manifest_path} cannot be read: {exc.strerror}. Without it, {path} is not a checkpoint."
                ) from exc
            raise refusal("read", manifest_path, exc) from exc
        name = _STEP.fullmatch(path.name)
        if name and int(name[1]) != manifest.global_step:
            raise DamagedCheckpoint(
                f"{manifest_path} says global step {manifest.global_step}, which is not that of its directory. "
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
        """Bytes of its files but the manifest."""
        return self.manifest.nbytes

    def read(self, tensor: str, start: int = 0, stop: int | None = None, prefer_ps: int | None = None) -> NDArray[Any]:
        """Rows of a tensor, out of as many files as hold them; no other file is opened.

        Args:
          tensor: its name, such as `params/hidden/kernel`.
          start: first row.
          stop: row after the last; all of them without it.
          prefer_ps: whose file to read rows from that lie in several.

        Returns:
          a fresh array, writable and aligned to 64 bytes.

        Raises:
          ValueError: rows that the tensor does not have.
          DamagedCheckpoint: a file is not what the manifest says.
          CheckpointError: there is no such tensor, or not enough memory for it.
        """
        whole = self._whole(tensor)
        stop = whole.rows if stop is None else stop
        if not 0 <= start <= stop <= whole.rows or (not whole.shape and start == stop):
            raise ValueError(f"{whole} has rows 0:{whole.rows}, not {start}:{stop}.")
        out = room_for(whole, stop - start)
        for part, stored in self._chosen(tensor, prefer_ps):
            low, high = max(start, stored.piece.start), min(stop, stored.piece.stop)
            if low < high:
                rows = out[low - start : high - start] if whole.shape else out
                # 10,000 variables are one header, not 10,000.
                with self._reader(part) as reader:
                    self._offsets[part.file] = reader.offsets
                    reader.read_into(rows, stored, low, high)
        return out

    def verify(self) -> list[DamagedCheckpoint]:
        """Reads every byte.

        Returns:
          what is wrong, in the order of the files; nothing if the checkpoint is sound.

        Raises:
          CheckpointError: the file system refuses.
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
        """Compares what a model wants with what is here: `params/`, `model_state/` and `optimizer/`.

        Args:
          pieces: the model's tensors; of each, one piece or several.
          params_only: whether the optimizer does not matter.

        Raises:
          ModelMismatch: one has a tensor that the other has not, or has in another shape or dtype; names the first.
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
            f"{self.path} is of another model or optimizer: {what}. Go on with those that were saved, "
            "or train into another directory."
        )

    def _whole(self, tensor: str) -> Piece:
        try:
            return self.manifest.tensors[tensor]
        except KeyError:
            near = _near(tensor, self.manifest.tensors)
            raise CheckpointError(f"{self.path} holds no tensor {tensor!r}{near}.") from None

    def _chosen(self, tensor: str, prefer_ps: int | None) -> Iterable[tuple[Part, Stored]]:
        """One place for each range of rows: that of the preferred ps, else the first."""
        chosen: dict[int, tuple[Part, Stored]] = {}
        for part, stored in self.manifest.places[tensor]:
            if stored.piece.start not in chosen or part.ps == prefer_ps != chosen[stored.piece.start][0].ps:
                chosen[stored.piece.start] = (part, stored)
        return chosen.values()


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (but {close[0]})" if close else ""
