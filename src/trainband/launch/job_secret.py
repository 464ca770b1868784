"""The secret of a job, which its launcher creates and removes.

It is in a file that only its user can read, in a directory that only its user can enter. A directory of that user has
links to it, named after the addresses of the ps, so that `trainband status` and `trainband run --join` find it too.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.resolvers.local_jobs import link_name
from trainband.cluster.resolvers.user_secret import is_private, private_directory
from trainband.cluster.task import Task
from trainband.errors import ClusterError


class JobSecret:
    """A new secret. Remove it with `close`.

    Raises:
      ClusterError: it cannot be stored.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="trainband-secret-"))
        except OSError as exc:
            raise ClusterError(
                f"the job's secret cannot be stored: {exc.strerror}. Free space in {tempfile.gettempdir()}, or run "
                "without a secret (TRAINBAND_INSECURE=1)."
            ) from None
        """Holds the secret and any certificates of the job. Tasks get only their own: `JobFiles`."""
        self.path = self.directory / "secret"
        """The file with the secret."""
        self._links: list[Path] = []
        write_secret(self.path, new_secret())

    def add_certificates(self, tasks: Iterable[Task], hosts: Sequence[str]) -> None:
        """Makes certificates beside the secret: for these tasks on these hosts, elastic workers and the job's user.

        Called again when the job moves to other hosts, because the certificates of the ps name theirs.

        Raises:
          YourError: `cryptography` is not installed.
        """
        from trainband.cluster import certificates  # here, because few jobs need them

        if not (self.directory / f"{AUTHORITY}.pem").exists():
            certificates.make_authority(self.directory)
        for name in (*map(str, tasks), "worker", "observer", "admin"):
            certificates.issue(self.directory, name, list(hosts))

    def publish(self, addresses: Iterable[str]) -> None:
        """Links it to the addresses of the ps for the user's commands. Does nothing if links cannot be made."""
        self._unpublish()
        with contextlib.suppress(OSError):
            directory = private_directory(self._environ)
            directory.mkdir(mode=0o700, exist_ok=True)
            if not is_private(directory):
                return
            for link in directory.iterdir():
                if link.is_symlink() and not link.exists():  # left by a killed launcher
                    link.unlink(missing_ok=True)
            for address in addresses:
                link = directory / link_name(address)
                link.unlink(missing_ok=True)
                link.symlink_to(self.path)
                self._links.append(link)

    def close(self) -> None:
        """Removes it. Idempotent."""
        self._unpublish()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _unpublish(self) -> None:
        for link in self._links:
            with contextlib.suppress(OSError):
                if link.readlink() == self.path:  # not of another job that has the port now
                    link.unlink()
        self._links.clear()
