"""The disk: small durable writes, and file system errors with advice."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from trainband.errors import CheckpointError
from trainband.runtime.regular_files import replacing

_FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(doing: str, path: Path, cause: OSError, needed: int | None = None) -> CheckpointError:
    """Converts an `OSError` to a `CheckpointError` that says what to do.

    Args:
      doing: what was tried, such as "write".
      path: the file or directory it was tried on.
      cause: the operating system's error.
      needed: bytes that were to be written, if known.
    """
    reason = cause.strerror or str(cause)
    text = f"cannot {doing} {path}: {reason}"
    if cause.errno in _FULL:
        free = _free_bytes(path)
        wanted = f"{needed:,} bytes are needed" if needed is not None else "more is needed"
        there = f", {free:,} are free" if free is not None else ""
        return CheckpointError(f"{text} ({wanted}{there}); make room, keep fewer checkpoints or use another disk.")
    if cause.errno == errno.ENOENT:
        return CheckpointError(
            f"{text}; the directory must exist and be one that every task sees under this path (a shared file system)."
        )
    if cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CheckpointError(f"{text}; give this user permission, or use another directory.")
    return CheckpointError(f"{text}.")


def write_durably(path: Path, data: bytes) -> None:
    """Writes a small file; after a crash it is new, as it was before, or absent, but never partial.

    Raises:
      OSError: the file system fails; the partial file is removed if possible.
    """
    with replacing(path, sync=True) as file:
        file.write(data)
    sync(path.parent)


def replace_durably(made: Path, path: Path) -> None:
    """Moves a finished file into place; after a crash, `path` is the whole new file or what it was before.

    Raises:
      OSError: the file system fails.
    """
    sync(made)
    made.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes the contents of a file, or the names in a directory, durable.

    Raises:
      OSError: the file system fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # from some network file systems, which have nothing to sync
            raise
    finally:
        os.close(descriptor)


def remove_quietly(path: Path) -> None:
    """Removes a file during error handling, without raising a second error."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _free_bytes(path: Path) -> int | None:
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


def move_into_place(made: Path, out: Path) -> None:
    """Replaces `out`: a file at once; a directory is moved aside first, and put back if the rename fails."""
    if not out.is_dir():
        made.replace(out)
        return
    aside = made.with_name(f"{made.name}.replaced")
    out.rename(aside)
    try:
        made.rename(out)
    except BaseException:
        aside.rename(out)
        raise
