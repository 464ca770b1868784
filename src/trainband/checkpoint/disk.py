"""The disk: small durable writes, and what the file system refuses in words that help."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

from trainband.errors import CheckpointError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(doing: str, path: Path, cause: OSError, needed: int | None = None) -> CheckpointError:
    """An `OSError` as a `CheckpointError` that says what to do.

    Args:
      doing: what was tried, such as "write".
      path: the file or directory it was tried on.
      cause: what the operating system said.
      needed: bytes that were to be written, if known.
    """
    reason = cause.strerror or str(cause)
    text = f"Cannot {doing} {path}: {reason}"
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
        return CheckpointError(f"{text}; give this user the right to, or use another directory.")
    return CheckpointError(f"{text}.")


def write_durably(path: Path, data: bytes) -> None:
    """Writes a small file so that after a crash it is there whole, as it was before, or not at all.

    Raises:
      OSError: the file system refuses; what was begun is removed if possible.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        remove_quietly(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable.

    Raises:
      OSError: the file system refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # some network file systems have nothing to do here, and say it so
            raise
    finally:
        os.close(descriptor)


def remove_quietly(path: Path) -> None:
    """Removes a file on the way out of an error, which a second error must not hide."""
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


def put_in_place(made: Path, out: Path) -> None:
    """A file replaces one at once; a directory must make way first, and is put back if the new one cannot come."""
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
