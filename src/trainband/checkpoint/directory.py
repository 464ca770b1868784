"""CheckpointDirectory: the checkpoints of one training run, committed, found and removed by renaming.

A reader needs no lock and changes nothing. The directory may contain::

    step-000000001000/                      committed
    .step-000000001000.3f2a1b7c.partial/    being written, or left behind
    .step-000000001000.3f2a1b7c.replaced/   an older checkpoint of this step; used until the new one is in place
    .trash-step-000000001000.3f2a1b7c/      being removed
    best.json, LOCK
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from trainband.checkpoint.disk import refusal, remove_quietly, sync, write_durably
from trainband.checkpoint.manifest import MANIFEST_FILE, MOST_NUMBER, Manifest, encode
from trainband.checkpoint.reader import Checkpoint, check_file
from trainband.checkpoint.retention import Retention
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.runtime.regular_files import UnusableFile, read_regular

BEST_FILE = "best.json"
MOST_BEST_BYTES = 64 << 10

_COMMITTED = re.compile(r"step-([0-9]{12,18})")
_REPLACED = re.compile(r"\.step-([0-9]{12,18})\.[0-9a-f]{8}\.replaced")
_LEFTOVER = re.compile(r"\.step-\d{12,}\.[0-9a-f]{8}\.partial|\.trash-.*")
_LEFTOVER_FILE = re.compile(rf"\.{re.escape(BEST_FILE)}\.[0-9a-f]{{8}}\.tmp")


class CheckpointDirectory:
    """The checkpoints of one training run. Only the holder of its `DirectoryLock` may call methods that change it."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Reads and creates nothing yet.

        Args:
          path: the directory; `create_partial` creates it if missing.
          say: takes a line for the user.
        """
        self.path = path
        self._say = say
        self._created_at: dict[tuple[int, int, int], float] = {}

    def steps(self) -> list[int]:
        """Returns the global steps of the committed checkpoints, ascending.

        Raises:
          CheckpointError: a file system error. A missing directory is not one: it holds no checkpoints.
        """
        return sorted(self._places())

    def path_of(self, step: int) -> Path:
        """Returns the path of a step's checkpoint, which need not exist."""
        return self._places().get(step, self.path / _name(step))

    def candidates(self) -> Iterator[Checkpoint]:
        """Yields the checkpoints that can be opened, newest first; reports each damaged one to `say`.

        Raises:
          CheckpointError: a file system error.
        """
        below = math.inf
        while steps := [step for step in self.steps() if step < below]:
            path = self.path_of(steps[-1])
            before = _identity(path)
            found: Checkpoint | CheckpointError
            try:
                found = Checkpoint.open(path)
            except CheckpointError as exc:
                found = exc
            if before is None or _identity(path) != before:
                continue  # removed or replaced in the meantime, so there is a newer one: list again
            below = steps[-1]
            if isinstance(found, Checkpoint):
                yield found
            elif isinstance(found, DamagedCheckpoint):
                then = f"falling back to {_name(steps[-2])}" if len(steps) > 1 else "no older checkpoint is left"
                self._say(f"{path.name} is damaged: {found} Now {then}.")
            else:
                raise found

    def newest(self) -> Checkpoint | None:
        """Returns the newest checkpoint that can be opened, or `None`.

        Raises:
          CheckpointError: a file system error.
        """
        return next(self.candidates(), None)

    def create_partial(self, step: int) -> Path:
        """Creates an empty directory for the parts of a new checkpoint.

        Raises:
          CheckpointError: a file system error.
        """
        partial = self.path / f".{_name(step)}.{secrets.token_hex(4)}.partial"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            partial.mkdir()
        except OSError as exc:
            raise refusal("create", partial, exc) from exc
        return partial

    def commit(self, partial: Path, manifest: Manifest) -> Checkpoint:
        """Turns the written parts into a checkpoint; after a crash it exists whole or not at all.

        It becomes the checkpoint of the manifest's global step and replaces an earlier one of this step.

        Args:
          partial: the directory from `create_partial`.
          manifest: describes every part.

        Raises:
          CheckpointError: a part is missing, or a file system error; an earlier checkpoint is kept.
        """
        final = self.path / _name(manifest.global_step)
        self._require_parts(partial, manifest)
        try:
            write_durably(partial / MANIFEST_FILE, encode(manifest))
            replaced = self._move_into_place(partial, final)
            sync(self.path)
        except OSError as exc:
            raise refusal("commit", final, exc) from exc
        if replaced is not None:
            self._remove(replaced)
        return Checkpoint(final, manifest)

    def discard(self, partial: Path) -> None:
        """Removes a directory from `create_partial` that will not be committed."""
        self._remove(partial)

    def sweep(self) -> None:
        """Removes what a crash left behind, and restores a checkpoint whose replacement was never committed.

        Raises:
          CheckpointError: a file system error.
        """
        for path in (self.path / entry.name for entry in self._entries()):
            if replaced := _REPLACED.fullmatch(path.name):
                final = self.path / _name(int(replaced[1]))
                if not final.exists():
                    self._rename(path, final)
                else:
                    self._remove(path)
            elif _LEFTOVER.fullmatch(path.name):
                self._remove(path)
            elif _LEFTOVER_FILE.fullmatch(path.name):
                remove_quietly(path)

    def retain(self, retention: Retention, protect: Collection[int] = ()) -> list[int]:
        """Removes the checkpoints that need not be kept. Damaged ones are neither counted nor removed.

        Args:
          retention: which to keep.
          protect: further steps to keep.

        Returns:
          the steps of the removed checkpoints.

        Raises:
          CheckpointError: a file system error.
        """
        places = self._places()
        created_at = {step: at for step, path in places.items() if (at := self._time_of(path)) is not None}
        removed = sorted(created_at.keys() - retention.kept(created_at) - set(protect))
        for step in removed:
            self._remove(places[step])
        return removed

    @property
    def best(self) -> tuple[int, str, float] | None:
        """Step, metric and value of the best checkpoint; `None` if none is marked.

        Raises:
          CheckpointError: a file system error.
        """
        path = self.path / BEST_FILE
        try:
            mark = msgspec.json.decode(read_regular(path, MOST_BEST_BYTES), type=_Best)
        except FileNotFoundError:
            return None
        except UnusableFile as exc:
            self._say(f"{path} is damaged: {exc.strerror}. No checkpoint counts as the best until the next validation.")
            return None
        except OSError as exc:
            raise refusal("read", path, exc) from exc
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            self._say(f"{path} is damaged: {exc}. No checkpoint counts as the best until the next validation.")
            return None
        return mark.step, mark.metric, mark.value

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Records which checkpoint is the best.

        Raises:
          ValueError: the value is not finite.
          CheckpointError: a file system error.
        """
        if not math.isfinite(value):
            raise ValueError(f"the best {metric} must be a finite number, got {value}.")
        path = self.path / BEST_FILE
        try:
            write_durably(path, msgspec.json.encode(_Best(step, metric, value)) + b"\n")
        except OSError as exc:
            raise refusal("write", path, exc) from exc

    def _entries(self) -> list[os.DirEntry[str]]:
        """Names and kinds of all entries at one moment; checking each path would see renames in between."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise refusal("list", self.path, exc) from exc

    def _places(self) -> dict[int, Path]:
        """Maps each step to its checkpoint: in place, or set aside if a commit died between its two renames."""
        names = [entry.name for entry in self._entries() if _is_directory(entry)]
        places = {int(aside[1]): name for name in names if (aside := _REPLACED.fullmatch(name))}
        places |= {int(own[1]): name for name in names if (own := _COMMITTED.fullmatch(name))}
        return {step: self.path / name for step, name in places.items()}

    def _require_parts(self, partial: Path, manifest: Manifest) -> None:
        for part in manifest.files:
            try:
                check_file(partial / part.file, part)
            except DamagedCheckpoint as exc:
                raise CheckpointError(
                    f"ps:{part.ps} has written {part.file}, but this task cannot see it intact: {exc} Use a directory "
                    "that every task sees under this path (a shared file system)."
                ) from exc

    def _move_into_place(self, partial: Path, final: Path) -> Path | None:
        """Gives a checkpoint its final name; renames and returns an earlier one of this name."""
        if not final.exists():
            partial.rename(final)
            return None
        replaced = final.with_name(f".{final.name}.{secrets.token_hex(4)}.replaced")
        final.rename(replaced)
        try:
            partial.rename(final)
        except OSError:
            self._rename(replaced, final)
            raise
        return replaced

    def _rename(self, path: Path, to: Path) -> None:
        try:
            path.rename(to)
        except OSError as exc:
            raise refusal("rename", path, exc) from exc

    def _remove(self, path: Path) -> None:
        """Renames first, so that no reader finds half of it and no task keeps writing into it."""
        trash = path
        if not path.name.startswith(".trash-"):
            trash = path.with_name(f".trash-{path.name.lstrip('.')}.{secrets.token_hex(4)}")
            try:
                path.rename(trash)
            except FileNotFoundError:
                return
            except OSError as exc:
                raise refusal("remove", path, exc) from exc
        try:
            shutil.rmtree(trash)
        except OSError as exc:  # on NFS also while a reader has one of its files open
            self._say(f"could not remove {trash} ({exc.strerror}); the next start of the training tries again")

    def _time_of(self, path: Path) -> float | None:
        """Creation time of a checkpoint; None if it is damaged. Manifests do not change, so each is read once."""
        try:
            status = (path / MANIFEST_FILE).stat()
        except OSError:
            return None
        key = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if key not in self._created_at:
            try:
                self._created_at[key] = Checkpoint.open(path).manifest.created_at
            except CheckpointError:
                return None
        return self._created_at[key]


class _Best(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `best.json`."""

    step: int
    metric: str
    value: float

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if not 0 <= self.step <= MOST_NUMBER:
            raise ValueError(f"global step {self.step:,} is out of range")


def _name(step: int) -> str:
    if step < 0:
        raise ValueError(f"a global step must not be negative, got {step}.")
    return f"step-{step:012d}"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link to itself
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    """Distinguishes a directory from a later one of the same name; None if it does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise refusal("read", path, exc) from exc
    return status.st_dev, status.st_ino
