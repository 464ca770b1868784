"""Regular files: safe, non-blocking reading and writing in directories that other users can write to.

Such a directory may contain, under any name, a FIFO (opening it waits for another process), a device (reading it never
ends), a sparse file of terabytes, or a symbolic link to one of this user's files (writing through it destroys that
file).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


class UnusableFile(OSError):
    """The path is not a regular file, or the file is larger than the caller accepts."""


_LEAST_READ = 1 << 16

READ_WHOLE = 1 << 40
"""A bound for files that are as large as a model or its data and are read whole."""


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Opens a file for reading; returns a descriptor that the caller must close. Never waits for another process.

    Args:
      path: the file.
      follow: whether the last part of the path may be a symbolic link.

    Raises:
      UnusableFile: it is a directory, FIFO, device or socket, or a symbolic link that must not be followed.
      OSError: the file system refuses.
    """
    return _opened(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))


def _opened(path: str | os.PathLike[str], flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    except OSError as exc:
        if flags & os.O_NOFOLLOW and exc.errno == errno.ELOOP:
            raise UnusableFile(errno.ELOOP, "it is a symbolic link", str(path)) from exc
        if exc.errno == errno.ENXIO:  # a socket, a missing device, or a FIFO without a reader
            raise UnusableFile(errno.ENXIO, "it is not a regular file", str(path)) from exc
        raise
    try:
        require_regular(os.fstat(descriptor), Path(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raises `UnusableFile` if a status is not a regular file's."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(errno.EINVAL, "it is not a regular file", str(path))


def regular_file(path: str | os.PathLike[str], *, follow: bool = True) -> io.BufferedReader:
    """`open_regular` as a file object."""
    return os.fdopen(open_regular(path, follow=follow), "rb")


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """Reads a whole small file.

    Args:
      path: the file.
      most: its greatest size in bytes.
      follow: see `open_regular`.

    Raises:
      UnusableFile: it is not a regular file, or is too large.
      OSError: the file system refuses.
    """
    with regular_file(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""
        while size < len(data) <= most:  # it grows, or its file system does not know its size
            more = file.read(min(len(data) + _LEAST_READ, most + 1 - len(data)))
            if not more:
                break
            data += more
    if size > most or len(data) > most:
        raise UnusableFile(errno.EFBIG, f"it has {max(size, len(data)):,} bytes; the limit is {most:,}", str(path))
    return data


@contextlib.contextmanager
def fixed_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a path for libraries that open files themselves; it keeps naming the regular file that is there now.

    Raises:
      UnusableFile: see `open_regular`.
      OSError: the file system refuses.
    """
    descriptor = open_regular(path)
    try:
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def append_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to append to, unbuffered; creates it if missing.

    Raises:
      UnusableFile: it is a symbolic link, or not a regular file.
      OSError: the file system refuses.
    """
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "ab", buffering=0)


def new_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Creates and opens a new file.

    Raises:
      FileExistsError: the name exists already.
      OSError: the file system refuses.
    """
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, replace: bool = True, sync: bool = False) -> Iterator[BinaryIO]:
    """Yields a new file, which gets its name when the block ends; an old file of that name is replaced, not modified.

    Args:
      path: the name.
      mode: of the new file, less the umask.
      replace: whether the name may exist; `FileExistsError` otherwise.
      sync: flush the contents to disk before the file gets its name.

    Raises:
      OSError: the file system refuses; the unfinished file is removed if possible.
    """
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
            temporary.unlink()
    except BaseException:
        with contextlib.suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)
        raise


def write_regular(path: Path, data: bytes) -> None:
    """Writes a whole file; see `replacing`."""
    with replacing(path) as file:
        file.write(data)
