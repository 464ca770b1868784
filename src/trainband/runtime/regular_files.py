"""Regular files: opening what a stranger may have put there, without waiting for it or filling the memory.

A directory that somebody else can write into may hold a FIFO (opening it waits for a writer), a device (reading it
never ends) or a file of terabytes that takes no room on the disk, under any name.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class UnusableFile(OSError):
    """What has the name is no regular file, or one that is larger than the caller takes."""


def open_regular(path: Path, *, follow: bool = True) -> int:
    """Opens a file for reading; returns a descriptor, which is the caller's to close. Never waits for another process.

    Args:
      path: the file.
      follow: whether the last part of the path may be a symbolic link.

    Raises:
      UnusableFile: it is a directory, FIFO, device or socket, or a symbolic link that is not to be followed.
      OSError: the file system refuses.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as exc:
        if not follow and exc.errno == errno.ELOOP:
            raise UnusableFile(errno.ELOOP, "it is a symbolic link", str(path)) from exc
        if exc.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise UnusableFile(errno.ENXIO, "it is not a regular file", str(path)) from exc
        raise
    try:
        require_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raises `UnusableFile` where a status is not a regular file's."""
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(errno.EINVAL, "it is not a regular file", str(path))


def read_regular(path: Path, most: int, *, follow: bool = True) -> bytes:
    """Everything in a small file.

    Args:
      path: the file.
      most: bytes that it may have.
      follow: see `open_regular`.

    Raises:
      UnusableFile: it is no regular file, or a larger one.
      OSError: the file system refuses.
    """
    descriptor = open_regular(path, follow=follow)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise UnusableFile(errno.EFBIG, f"it has {max(size, len(data)):,} bytes, and {most:,} are the most", str(path))
    return data
