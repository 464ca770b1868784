"""The credentials with which the tasks of a job authenticate to one another."""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from trainband.errors import ClusterError
from trainband.runtime.regular_files import open_regular

SECRET_BYTES = 32
"""The length of a new secret: as many random bits as the keys derived from it."""
_LEAST_CHARACTERS = 32
_MOST_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A job's secret, the directory of a task's certificate, both, or neither.

    Attributes:
      secret: known to the tasks of the job only; empty for none.
      tls: a directory made by `trainband certs`; `None` for no encryption.
      insecure: whether a task without either may serve at an address that other machines reach.
    """

    secret: bytes = field(default=b"", repr=False)
    tls: Path | None = None
    insecure: bool = False

    @property
    def protect(self) -> bool:
        """Whether calls must be authenticated."""
        return bool(self.secret) or self.tls is not None


NO_CREDENTIALS = Credentials()
"""No authentication; other machines must not reach the task."""


def new_secret() -> str:
    """Returns a new random secret, as text."""
    return secrets.token_urlsafe(SECRET_BYTES)


def write_secret(path: Path, text: str) -> None:
    """Writes a secret to a new file that only its owner can read.

    Raises:
      ClusterError: the file exists already or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ClusterError(f"{path} already exists, and a secret never overwrites a file; give another path.") from None
    except OSError as exc:
        raise ClusterError(f"cannot write the secret to {path}: {exc.strerror}.") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")


def read_secret(path: Path, field_name: str) -> bytes:
    """Returns the secret in a file, without surrounding whitespace.

    Args:
      field_name: the setting that named the file, for messages.

    Raises:
      ClusterError: the file is missing or not regular, other users can read it, or it has no usable secret.
    """
    try:
        descriptor = open_regular(path)  # symbolic links, too: Kubernetes mounts secrets as links
    except OSError as exc:
        raise ClusterError(f"{field_name} = {path}: the secret file cannot be read ({exc.strerror}).") from None
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
            raise ClusterError(
                f"{field_name} = {path} can be read by every user of this machine and is not a secret; "
                f"make a new one with `trainband secret FILE` (and keep it private: chmod 600 {path})."
            )
        text = file.read(_MOST_BYTES + 1).strip()
    if not _LEAST_CHARACTERS <= len(text) <= _MOST_BYTES:
        raise ClusterError(
            f"{field_name} = {path} has {len(text)} characters; a secret has from {_LEAST_CHARACTERS} to "
            f"{_MOST_BYTES}. Make one with `trainband secret FILE`."
        )
    return text
