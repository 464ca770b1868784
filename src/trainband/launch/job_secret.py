"""The secret of a job whose tasks all run on this machine: made by the launcher, gone with it.

It lies in a file that only its user can read, in a directory that only its user can enter; tasks get the path by their
environment. So that `trainband status` and `trainband run --join` of the same user find it too, links that are named
after the addresses of the ps lead to it, from a directory of that user.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.resolvers.local_jobs import environment_of, is_private, job_directory, link_name
from trainband.cluster.task import Task
from trainband.errors import ClusterError


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
        self._path = self.directory / "secret"
        self._links: list[Path] = []
        write_secret(self._path, new_secret())

    def add_certificates(self, tasks: Iterable[Task], hosts: Sequence[str]) -> None:
        """Makes certificates beside the secret, for these tasks on these hosts and for whoever looks.

        Raises:
          YourError: `cryptography` is not installed.
        """
        from trainband.cluster import certificates  # here, because few jobs need it

        certificates.make_authority(self.directory)
        for name in (*map(str, tasks), "worker", "observer", "admin"):
            certificates.issue(self.directory, name, list(hosts))
        (self.directory / f"{AUTHORITY}.key").unlink()  # nobody needs another

    @property
    def environment(self) -> dict[str, str]:
        """What tells a task where they are."""
        return environment_of(self._path)

    def publish(self, addresses: Iterable[str]) -> None:
        """Lets the same user's commands find it by the address of a ps. Where that cannot be, they are not told."""
        self._unpublish()
        with contextlib.suppress(OSError):
            directory = job_directory(self._environ)
            directory.mkdir(mode=0o700, exist_ok=True)
            if not is_private(directory):
                return
            for link in directory.iterdir():
                if link.is_symlink() and not link.exists():  # of a launcher that was killed
                    link.unlink(missing_ok=True)
            for address in addresses:
                link = directory / link_name(address)
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
