"""The secrets of the jobs that this user's own launchers have started on this machine, by the address of a ps.

Each launcher keeps its job's secret in a file that only its user can read; links named after addresses lead to it, from
a directory of that user.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.credentials import Credentials, read_secret
from trainband.cluster.resolvers.credentials import (
    INSECURE,
    SECRET_FILE,
    TLS_DIRECTORY,
    resolve_credentials,
)


def is_decided(environ: Mapping[str, str]) -> bool:
    """Whether the environment says already with which security a job runs."""
    return any(environ.get(name) for name in (SECRET_FILE, TLS_DIRECTORY, INSECURE))


def find_job_secret(address: str, environ: Mapping[str, str]) -> Path | None:
    """The file with the secret of a job that this user has started on this machine; `None` where there is none.

    Args:
      address: of a ps of the job.
      environ: of this process.
    """
    with contextlib.suppress(OSError):
        directory = job_directory(environ)
        link = directory / link_name(address)
        if is_private(directory) and link.exists():
            return link.resolve()
    return None


def credentials_for(address: str, environ: Mapping[str, str] | None = None) -> Credentials:
    """Those that the environment gives, or else those of this user's own job at an address.

    Args:
      address: of a ps of the job.
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      ClusterError: what the environment gives cannot be used.
    """
    environ = os.environ if environ is None else environ
    given = resolve_credentials(environ)
    path = None if given.protect or given.insecure else find_job_secret(address, environ)
    return (
        given if path is None else Credentials(secret=read_secret(path, "the secret of the job"), tls=_tls_beside(path))
    )


def environment_of(path: Path) -> dict[str, str]:
    """What tells a task where a job's secret is that `find_job_secret` has found, and its certificates."""
    tls = _tls_beside(path)
    return {SECRET_FILE: str(path), **({} if tls is None else {TLS_DIRECTORY: str(tls)})}


def _tls_beside(path: Path) -> Path | None:
    return path.parent if (path.parent / f"{AUTHORITY}.pem").exists() else None


def job_directory(environ: Mapping[str, str]) -> Path:
    """Where this user's launchers put the links."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")  # the desktop's, private to the user
    if runtime and Path(runtime).is_dir():
        return Path(runtime, "trainband")
    return Path(tempfile.gettempdir(), f"trainband-{os.getuid()}")


def is_private(directory: Path) -> bool:
    """Whether it is a directory of this user's that nobody else can write to or look into."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def link_name(address: str) -> str:
    """What the link for the job of a ps is called."""
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host in ("localhost", "[::1]") else host
    return f"{host}_{port}".replace("/", "_")
