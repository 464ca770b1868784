"""The secrets of the jobs that this user's launchers have started on this machine, by the address of a ps.

Each launcher keeps its job's secret in a file that only its user can read; a directory of that user has links to it,
named after addresses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.credentials import Credentials, read_secret
from trainband.cluster.resolvers.credentials import INSECURE, SECRET_FILE, TLS_DIRECTORY
from trainband.cluster.resolvers.user_secret import credentials_at, is_private, private_directory


def is_decided(environ: Mapping[str, str]) -> bool:
    """Whether the environment already sets the security of a job."""
    return any(environ.get(name) for name in (SECRET_FILE, TLS_DIRECTORY, INSECURE))


def find_job_secret(address: str, environ: Mapping[str, str]) -> Path | None:
    """Returns the file with the secret of a job that this user started on this machine; `None` without one.

    Args:
      address: of a ps of the job.
    """
    with contextlib.suppress(OSError):
        directory = private_directory(environ)
        link = directory / link_name(address)
        if is_private(directory) and link.exists():
            return link.resolve()
    return None


def credentials_for(address: str, environ: Mapping[str, str] | None = None) -> Credentials:
    """Returns the environment's credentials, else those of this user's job at an address, else `credentials_at`.

    Args:
      address: of a ps of the job.
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      ClusterError: the environment's are invalid, or the user's own secret cannot be stored.
    """
    environ = os.environ if environ is None else environ
    path = None if is_decided(environ) else find_job_secret(address, environ)
    if path is None:
        return credentials_at(address, environ)
    return Credentials(secret=read_secret(path, "the secret of the job"), tls=_tls_beside(path))


def environment_of(path: Path) -> dict[str, str]:
    """Returns variables that tell a task where the secret from `find_job_secret` and the certificates are."""
    tls = _tls_beside(path)
    return {SECRET_FILE: str(path), **({} if tls is None else {TLS_DIRECTORY: str(tls)})}


def _tls_beside(path: Path) -> Path | None:
    return path.parent if (path.parent / f"{AUTHORITY}.pem").exists() else None


def link_name(address: str) -> str:
    """Returns the name of the link for the job of a ps."""
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host in ("localhost", "[::1]") else host
    return f"{host}_{port}".replace("/", "_")
