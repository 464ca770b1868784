"""The user's own secret, for tasks on loopback addresses that are given none.

Tasks that are started by hand on one machine need no setup: they authenticate with a file in a directory that only
this user can enter, and other users of the machine are refused.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainband.cluster.address import resolves_to_loopback
from trainband.cluster.credentials import Credentials, new_secret, read_secret, write_secret
from trainband.cluster.resolvers.credentials import INSECURE, SECRET_FILE, resolve_credentials
from trainband.errors import ClusterError

_NAME = "own-secret"


def credentials_at(address: str, environ: Mapping[str, str] | None = None) -> Credentials:
    """Returns the credentials for serving at or calling an address: the environment's, else the user's own secret.

    The latter is used only if no other machine reaches the address: tasks on several machines cannot share it.

    Args:
      address: where a task serves, `host:port`.
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      ClusterError: the environment's are invalid, or the user's own secret cannot be stored.
    """
    environ = os.environ if environ is None else environ
    given = resolve_credentials(environ)
    if given.protect or given.insecure or not resolves_to_loopback(address):
        return given
    return Credentials(secret=user_secret(state_directory(environ)))


@functools.cache  # a task keeps its secret if the directory is cleaned up meanwhile
def user_secret(directory: Path) -> bytes:
    """Returns the user's own secret, which is created on first use.

    Raises:
      ClusterError: other users can enter the directory, or it cannot be created.
    """
    path = directory / _NAME
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        if not is_private(directory):
            raise ClusterError(_no_place(f"{directory} is another user's, or other users can enter it"))
        if not path.exists():
            _make(path)
    except OSError as exc:
        raise ClusterError(_no_place(f"{exc.filename or directory}: {exc.strerror}")) from None
    return read_secret(path, "your own secret")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Returns where this user's secret is: in the home directory, since tasks outlive the session that started them and
    its `XDG_RUNTIME_DIR`; in `private_directory` if this user has no home.

    Source: the XDG Base Directory Specification 0.8, `XDG_STATE_HOME`.
    """
    home = environ.get("HOME", "")
    with contextlib.suppress(OSError):
        if home and Path(home).stat().st_uid == os.getuid():  # `sudo` and `su` may leave another user's
            return Path(environ.get("XDG_STATE_HOME") or Path(home, ".local", "state"), "trainband")
    return private_directory(environ)


def private_directory(environ: Mapping[str, str]) -> Path:
    """Returns this user's directory for secrets that tasks and commands on this machine find by themselves."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")  # the desktop's, private to the user
    with contextlib.suppress(OSError):
        if runtime and Path(runtime).stat().st_uid == os.getuid():  # within `su`, it may be another user's
            return Path(runtime, "trainband")
    return Path(tempfile.gettempdir(), f"trainband-{os.getuid()}")


def is_private(directory: Path) -> bool:
    """Whether it is a directory that only this user can read, write and enter."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _make(path: Path) -> None:
    """Writes a new secret atomically and only once, even if several tasks start together."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    write_secret(new, new_secret())
    try:
        os.link(new, path)
    except FileExistsError:
        pass  # another task was faster
    finally:
        new.unlink()


def _no_place(why: str) -> str:
    return (
        "tasks on loopback addresses authenticate with a secret in a directory of their user, "
        f"which is unusable: {why}. Give all tasks of the job a secret ({SECRET_FILE}=FILE; `trainband "
        f"secret FILE` makes one), or none ({INSECURE}=1): then every user of this machine can control the job."
    )
