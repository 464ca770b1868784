"""A directory of certificates, as `trainband certs` makes it and tasks read it.

It contains `ca.pem`, the authority's certificate, which every machine needs; for each task `NAME.pem` and `NAME.key`
(`worker-0.pem`), which only its own machine needs; `revoked`, the serial numbers of revoked certificates; and, only on
the machine that issues them, `ca.key`.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trainband.cluster.identity import Identity
from trainband.errors import ClusterError
from trainband.runtime.regular_files import read_regular

AUTHORITY = "ca"
REVOKED = "revoked"
PS_NAME = "ps.trainband.internal"
"""A DNS name in the certificate of every ps, whatever its host: it marks the owner as a ps."""
SCHEME = "trainband"
"""The scheme of the URIs with which certificates name their owners."""
_MOST_BYTES = 1 << 20
_SERIAL = re.compile(r"[0-9a-f]{1,40}")


def file_name(identity: str) -> str:
    """Returns the name of an identity's files without the ending: `worker-0` for `worker:0`."""
    return identity.replace(":", "-")


def uri_of(identity: str, serial: int) -> str:
    """Returns the URI that names a certificate's owner and the certificate: `trainband://worker/0?serial=1f`."""
    return f"{SCHEME}://{identity.replace(':', '/')}?serial={serial:x}"


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate's claim about its owner."""

    identity: Identity
    serial: str


def read_uri(uri: str) -> Certified:
    """Reads a URI written by `uri_of`.

    Raises:
      ClusterError: the URI has another form.
    """
    try:
        parts = urlsplit(uri)
        serial = parts.query.removeprefix("serial=")
        if parts.scheme != SCHEME or not _SERIAL.fullmatch(serial):
            raise ValueError(uri)
        return Certified(Identity(":".join(filter(None, (parts.netloc, parts.path.strip("/"))))), serial)
    except ValueError:  # a ClusterError, too
        raise ClusterError(
            f"the certificate names its owner {uri[:100]!r}; `trainband certs` did not issue it."
        ) from None


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The files of one task.

    Attributes:
      directory: where they are.
      name: the certificate's owner.
    """

    directory: Path
    name: str

    @staticmethod
    def find(directory: Path, identity: Identity) -> CertificateFiles:
        """Finds a task's own files, or those of all tasks of its job; for an observer, any, because every task may
        observe.

        Raises:
          ClusterError: there are none, or they cannot be read.
        """
        others = sorted(path.stem for path in directory.glob("*.key")) if identity.job == "observer" else ()
        for name in (file_name(identity.name), identity.job, *(name for name in others if name != AUTHORITY)):
            if (directory / f"{name}.pem").is_file():
                files = CertificateFiles(directory, name)
                files.authority, files.certificate, files.key  # noqa: B018 - so that an error shows now
                return files
        raise ClusterError(
            f"{directory} has no certificate for {identity.name}: there is no {file_name(identity.name)}.pem. Make one "
            f"with `trainband certs issue {directory} {identity.name} HOST`, on the machine that has ca.key."
        )

    @property
    def authority_path(self) -> Path:
        """The authority's certificate."""
        return self.directory / f"{AUTHORITY}.pem"

    @property
    def certificate_path(self) -> Path:
        """The task's certificate."""
        return self.directory / f"{self.name}.pem"

    @property
    def key_path(self) -> Path:
        """The task's private key."""
        return self.directory / f"{self.name}.key"

    @property
    def authority(self) -> bytes:
        """The authority's certificate, in PEM."""
        return _read(self.authority_path)

    @property
    def certificate(self) -> bytes:
        """The task's certificate, in PEM."""
        return _read(self.certificate_path)

    @property
    def key(self) -> bytes:
        """The task's private key, in PEM."""
        return _read(self.key_path, private=True)


class Revocations:
    """The serial numbers in the file `revoked` of a directory, read again whenever it has changed.

    A revoked number stays revoked for the life of the process, even while the file is being replaced.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / REVOKED
        self._seen: tuple[int, int] | None = None
        self._serials: frozenset[str] = frozenset()

    def __contains__(self, serial: str) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return serial in self._serials
        seen = found.st_mtime_ns, found.st_size
        if seen != self._seen:
            lines = _read(self._path).decode("ascii", "replace").splitlines()
            self._serials |= {line.split("#")[0].strip() for line in lines}
            self._seen = seen
        return serial in self._serials


def _read(path: Path, *, private: bool = False) -> bytes:
    try:
        if private and path.stat().st_mode & stat.S_IROTH:
            raise ClusterError(f"{path} is a private key that every user of this machine can read; chmod 600 it.")
        return read_regular(path, _MOST_BYTES)
    except OSError as exc:
        raise ClusterError(f"{path} cannot be read: {exc.strerror}.") from None
