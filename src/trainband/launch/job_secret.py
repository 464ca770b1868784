"""The secret of a job whose tasks all run on this machine: made by the launcher, gone with it.

It lies in a file that only its user can read, in a directory that only its user can enter; tasks get the path by their
environment. So that `trainband status` and `trainband run --join` of the same user find it too, links that are named
after the addresses of the ps lead to it, from a directory of that user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.credentials import Credentials, new_secret, read_secret, write_secret
from trainband.cluster.resolvers.credentials import (
    INSECURE,
    SECRET_FILE,
    TLS_DIRECTORY,
    resolve_credentials,
)
from trainband.cluster.task import Task
from trainband.errors import ClusterError


def is_decided(environ: Mapping[str, str]) -> bool:
    """Whether the environment says already with which security a job runs."""
    return any(environ.get(name) for name in (SECRET_FILE, TLS_DIRECTORY, INSECURE))


class JobSecret:
    """A new secret. Remove it with `close`.

    Raises:
      ClusterError: there is no place to keep it.

    Args:
      environ: of the launcher.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="trainband-secret-"))
        except OSError as exc:
            raise ClusterError(
                f"the job's secret cannot be kept: {exc.strerror}. Make room in {tempfile.gettempdir()}, or do without "
                "(TRAINBAND_INSECURE=1)."
            ) from None
        """Holds the secret, and the certificates if there are any."""
        self._has_certificates = False
        self._path = self.directory / "secret"
        self._links: list[Path] = []
        write_secret(self._path, new_secret())

    def add_certificates(self, tasks: Iterable[Task], host: str) -> None:
        """Makes certificates beside the secret, for these tasks and for whoever looks.

        Raises:
          YourError: `cryptography` is not installed.
        """
        from trainband.cluster import certificates  # here, because few jobs need it

        self._has_certificates = True
        certificates.make_authority(self.directory)
        for name in (*map(str, tasks), "worker", "observer", "admin"):
            certificates.issue(self.directory, name, [host])
        (self.directory / f"{AUTHORITY}.key").unlink()  # nobody needs another

    @property
    def environment(self) -> dict[str, str]:
        """What tells a task where they are."""
        return {
            SECRET_FILE: str(self._path),
            **({TLS_DIRECTORY: str(self.directory)} if self._has_certificates else {}),
        }

    def publish(self, addresses: Iterable[str]) -> None:
        """Lets the same user's commands find it by the address of a ps. Where that cannot be, they are not told."""
        self._unpublish()
        with contextlib.suppress(OSError):
            directory = _directory(self._environ)
            directory.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(directory):
                return
            for link in directory.iterdir():
                if link.is_symlink() and not link.exists():  # of a launcher that was killed
                    link.unlink(missing_ok=True)
            for address in addresses:
                link = directory / _link_name(address)
                link.unlink(missing_ok=True)
                link.symlink_to(self._path)
                self._links.append(link)

    def close(self) -> None:
        """Removes it. Idempotent."""
        self._unpublish()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _unpublish(self) -> None:
        for link in self._links:
            with contextlib.suppress(OSError):
                if link.readlink() == self._path:  # not that of another job that has the port now
                    link.unlink()
        self._links.clear()


def find_job_secret(address: str, environ: Mapping[str, str]) -> Path | None:
    """The file with the secret of a job that this user has started on this machine; `None` where there is none.

    Args:
      address: of a ps of the job.
      environ: of this process.
    """
    with contextlib.suppress(OSError):
        directory = _directory(environ)
        link = directory / _link_name(address)
        if _is_private(directory) and link.exists():
            return link.resolve()
    return None


def credentials_for(address: str, environ: Mapping[str, str]) -> Credentials:
    """Those that the environment gives, or else those of this user's own job at an address.

    Raises:
      ClusterError: what the environment gives cannot be used.
    """
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


def _directory(environ: Mapping[str, str]) -> Path:
    runtime = environ.get("XDG_RUNTIME_DIR", "")  # the desktop's, private to the user
    if runtime and Path(runtime).is_dir():
        return Path(runtime, "trainband")
    return Path(tempfile.gettempdir(), f"trainband-{os.getuid()}")


def _is_private(directory: Path) -> bool:
    """Whether it is a directory of this user's that nobody else can write to or look into."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _link_name(address: str) -> str:
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host in ("localhost", "[::1]") else host
    return f"{host}_{port}".replace("/", "_")
