"""CheckpointDirectory: the checkpoints of one training, committed, found and removed by renaming.

A reader needs no lock and changes nothing. What it may find in the directory::

    step-000000001000/                      committed
    .step-000000001000.3f2a1b7c.partial/    being written, or left behind
    .step-000000001000.3f2a1b7c.replaced/   made way for a new one of its step; counts while that is not in place
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

from trainband.checkpoint.disk import refusal, remove_quietly, sync_directory, write_durably
from trainband.checkpoint.manifest import MANIFEST_FILE, MOST_NUMBER, Manifest, encode
from trainband.checkpoint.part import check_file
from trainband.checkpoint.retention import Retention
from trainband.checkpoint.snapshot import Checkpoint
from trainband.errors import CheckpointError, DamagedCheckpoint
from trainband.runtime.regular_files import UnusableFile, read_regular

BEST_FILE = "best.json"
MOST_BEST_BYTES = 64 << 10

_COMMITTED = re.compile(r"step-([0-9]{12,18})")
_REPLACED = re.compile(r"\.step-([0-9]{12,18})\.[0-9a-f]{8}\.replaced")
_LEFTOVER = re.compile(r"\.step-\d{12,}\.[0-9a-f]{8}\.partial|\.trash-.*")
_LEFTOVER_FILE = re.compile(rf"\.{re.escape(BEST_FILE)}\.[0-9a-f]{{8}}\.tmp")


class CheckpointDirectory:
    """The checkpoints of one training. Only the holder of its `DirectoryLock` may call what changes it."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        """Nothing is read or made yet.

        Args:
          path: the directory; `begin` makes it if it is not there.
          say: takes a line for the user.
        """
        self.path = path
        self._say = say
        self._created_at: dict[tuple[int, int, int], float] = {}

    def steps(self) -> list[int]:
        """The global steps of the committed checkpoints, ascending.

        Raises:
          CheckpointError: the file system refuses. A directory that does not exist merely holds none.
        """
        return sorted(self._places())

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self._places().get(step, self.path / _name(step))

    def candidates(self) -> Iterator[Checkpoint]:
        """The checkpoints that can be opened, newest first; says of each damaged one what is wrong with it.

        Raises:
          CheckpointError: the file system refuses.
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
                continue  # it was removed or replaced meanwhile, for which there is a newer one: look again
            below = steps[-1]
            if isinstance(found, Checkpoint):
                yield found
            elif isinstance(found, DamagedCheckpoint):
                then = f"the one before it, {_name(steps[-2])}, is used" if len(steps) > 1 else "none is left"
                self._say(f"{path.name} is damaged: {found} Now {then}.")
            else:
                raise found

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be opened, if there is any.

        Raises:
          CheckpointError: the file system refuses.
        """
        return next(self.candidates(), None)

    def begin(self, step: int) -> Path:
        """An empty directory to write the parts of a new checkpoint into.

        Raises:
          CheckpointError: the file system refuses.
        """
        partial = self.path / f".{_name(step)}.{secrets.token_hex(4)}.partial"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            partial.mkdir()
        except OSError as exc:
            raise refusal("make", partial, exc) from exc
        return partial

    def commit(self, partial: Path, manifest: Manifest) -> Checkpoint:
        """Makes a checkpoint out of the parts that have been written; after a crash it is there whole or not at all.

        It is that of the manifest's global step, and takes the place of an earlier one of this step.

        Args:
          partial: what `begin` gave.
          manifest: tells of every part.

        Raises:
          CheckpointError: a part is not there, or the file system refuses; what was there before still is.
        """
        final = self.path / _name(manifest.global_step)
        self._require_parts(partial, manifest)
        try:
            write_durably(partial / MANIFEST_FILE, encode(manifest))
            replaced = self._put_in_place(partial, final)
            sync_directory(self.path)
        except OSError as exc:
            raise refusal("commit", final, exc) from exc
        if replaced is not None:
            self._remove(replaced)
        return Checkpoint(final, manifest)

    def discard(self, partial: Path) -> None:
        """Removes a directory that `begin` gave and that will not be committed."""
        self._remove(partial)

    def sweep(self) -> None:
        """Removes what a crash left behind, and puts back what had made way for a checkpoint that never came.

        Raises:
          CheckpointError: the file system refuses.
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
        """Removes the checkpoints that need not be kept. One that is damaged is neither counted nor removed.

        Args:
          retention: which are kept.
          protect: steps that are kept besides.

        Returns:
          the steps of those that were removed.

        Raises:
          CheckpointError: the file system refuses.
        """
        places = self._places()
        created_at = {step: at for step, path in places.items() if (at := self._time_of(path)) is not None}
        removed = sorted(created_at.keys() - retention.kept(created_at) - set(protect))
        for step in removed:
            self._remove(places[step])
        return removed

    @property
    def best(self) -> tuple[int, str, float] | None:
        """Step, metric and value of the best checkpoint, if one was marked.

        Raises:
          CheckpointError: the file system refuses.
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
        """Notes which checkpoint is the best.

        Raises:
          ValueError: the value is not finite.
          CheckpointError: the file system refuses.
        """
        if not math.isfinite(value):
            raise ValueError(f"The best {metric} must be a finite number, got {value}.")
        path = self.path / BEST_FILE
        try:
            write_durably(path, msgspec.json.encode(_Best(step, metric, value)) + b"\n")
        except OSError as exc:
            raise refusal("write", path, exc) from exc

    def _entries(self) -> list[os.DirEntry[str]]:
        """Names and kinds as the directory was at one moment; a look at each path would see renames in between."""
        try:
            with os.scandir(self.path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise refusal("list", self.path, exc) from exc

    def _places(self) -> dict[int, Path]:
        """Where the checkpoint of each step is: in its place, or aside if a commit died between two renames."""
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
                    f"ps:{part.ps} has written {part.file}, and here it is not so: {exc} The directory must be "
                    "one that every task sees under this path (a shared file system)."
                ) from exc

    def _put_in_place(self, partial: Path, final: Path) -> Path | None:
        """Gives a checkpoint its final name; where one is already, that one is renamed, and returned."""
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
        """Renames first, so that no reader finds half of it, and no task goes on writing into it."""
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
        except OSError as exc:  # on NFS also while a reader has a file of it open
            self._say(f"{trash} is not removed yet ({exc.strerror}); the next start of the training tries again.")

    def _time_of(self, path: Path) -> float | None:
        """When a checkpoint was made; None if it is damaged. Manifests do not change, so each is read once."""
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
    """What `best.json` holds."""

    step: int
    metric: str
    value: float

    def __post_init__(self) -> None:
        """Check what a type cannot say."""
        if not 0 <= self.step <= MOST_NUMBER:
            raise ValueError(f"step is {self.step}, which is none")


def _name(step: int) -> str:
    if step < 0:
        raise ValueError(f"A global step is not negative, got {step}.")
    return f"step-{step:012d}"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symbolic link that leads to itself
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a directory from one that later has its name; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise refusal("read", path, exc) from exc
    return status.st_dev, status.st_ino
