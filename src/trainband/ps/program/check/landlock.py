"""Landlock: restricts a process to reading the given paths, on kernels that have it (Linux 5.13 and later).

Source: the kernel's Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ONLY_VERSION = 1
_BENEATH_PATH = 1
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""ABI version -> the number of file rights known from it on."""
_BIND_AND_CONNECT = 3, 4
_ABSTRACT_SOCKETS_AND_SIGNALS = 3, 6
"""Bits, and the first version of the ABI with them."""


def restrict_reading(libc: ctypes.CDLL, paths: Iterable[Path]) -> str:
    """Takes all rights on files from the calling thread and its later threads, except reading what is in `paths`.

    They also lose TCP, abstract sockets and signals to others if the kernel supports these, and can no longer trace
    other processes or read their memory. The process must have `PR_SET_NO_NEW_PRIVS`.

    Returns:
      Why this is impossible, or an empty string.
    """
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ONLY_VERSION)
    if version < 1:
        return f"Landlock is not available ({os.strerror(ctypes.get_errno())}), so it can read the files of its user"
    attributes = ruleset_of(version)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return f"the kernel makes no Landlock ruleset ({os.strerror(ctypes.get_errno())})"
    try:
        for path in paths:
            with contextlib.suppress(OSError):  # a missing path cannot be read either
                _allow(libc, ruleset, path)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            return f"the kernel refuses the Landlock ruleset ({os.strerror(ctypes.get_errno())})"
    finally:
        os.close(ruleset)
    return ""


def ruleset_of(version: int) -> bytes:
    """`struct landlock_ruleset_attr` with all that a version of the ABI can forbid, in its length."""
    files = (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= version)) - 1
    fields = [files, *(bits for bits, since in (_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS) if since <= version)]
    return struct.pack(f"={len(fields)}Q", *fields)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = struct.pack("=Qi", _READ_FILE | (_READ_DIRECTORY if is_directory else 0), descriptor)
        if libc.syscall(_ADD_RULE, ruleset, _BENEATH_PATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), "Landlock", str(path))
    finally:
        os.close(descriptor)
