"""JobFiles: a job's private files: its secret, the tasks' certificates, its pickled function."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY, REVOKED, CertificateFiles, file_name
from trainband.cluster.credentials import read_secret
from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.credentials import SECRET_FILE, TLS_DIRECTORY, without_security
from trainband.cluster.resolvers.local_jobs import is_decided
from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.function import pickled
from trainband.launch.job_secret import JobSecret
from trainband.launch.machine import FILES
from trainband.launch.request import JobRequest

_SECRET = "secret"
_FUNCTION = "function.pickle"
_TASKS = "tasks"


class JobFiles:
    """The private files of one job, in a directory of this machine. Remove them with `close`.

    Each task gets its own directory with only what it needs: of the certificates, the authority's, the revocation list,
    and its own with its key. The keys of other tasks, observers, admins and the authority stay with the launcher.

    Raises:
      YourError: its program is a function, and cloudpickle is not installed.
      ClusterError: its program is a function that cannot be sent.
    """

    def __init__(self, request: JobRequest) -> None:
        self._request = request
        program = request.program
        self._function = pickled(program) if callable(program) else None
        self.command: list[str] = (
            ["-m", "trainband.launch.function_program", f"{FILES}/{_FUNCTION}"] if callable(program) else list(program)
        )
        """The command that each task runs with Python."""
        self._secret: JobSecret | None = None
        self._directory: Path | None = None
        self._shared: dict[str, Path] = {}
        self._certificates: Path | None = None

    def add_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the tasks' environment with the locations of the files added."""
        found = {SECRET_FILE: f"{FILES}/{_SECRET}"} if _SECRET in self._shared else {}
        if self._certificates is not None:
            found[TLS_DIRECTORY] = FILES
        return {**(without_security(environ) if found else environ), **found}

    @property
    def directory(self) -> Path | None:
        """Where they are; `None` if the job has none."""
        return self._directory

    def make(self, tasks: Iterable[Task], hosts: Sequence[str], *, secure: bool) -> None:
        """Makes them.

        Args:
          hosts: the names and addresses that certificates are made for.
          secure: whether the job needs its own secret, unless the environment sets its credentials.

        Raises:
          YourError: certificates are requested, and `cryptography` is not installed.
          ClusterError: they cannot be stored, or the credentials in the environment are invalid.
        """
        tasks = list(tasks)
        environ = self._request.environment
        if secure and (self._request.tls or not is_decided(environ)):
            self._secret = JobSecret(environ)
            self._directory = self._secret.directory
            self._shared[_SECRET] = self._secret.path
            if self._request.tls:
                self._secret.add_certificates(tasks, hosts)
                self._certificates = self._directory
        else:
            if path := environ.get(SECRET_FILE):
                read_secret(Path(path), SECRET_FILE)  # fails now, under the name that the user gave it
                self._shared[_SECRET] = Path(path).absolute()
            if tls := environ.get(TLS_DIRECTORY):
                self._certificates = Path(tls).absolute()
        if self._function is not None:
            self._shared[_FUNCTION] = self._need_directory() / _FUNCTION
            self._shared[_FUNCTION].write_bytes(self._function)
        if self._shared or self._certificates is not None:
            self._need_directory()
        for task in tasks:
            self._files_of(task)  # finds a missing certificate before anything starts

    def move(self, tasks: Iterable[Task], hosts: Sequence[str]) -> None:
        """Renews the certificates of a job that restarts on other hosts, because those of the ps name their host."""
        if self._secret is not None and self._request.tls:
            self._secret.add_certificates(tasks, hosts)

    def of(self, task: Task) -> Path | None:
        """Returns a new directory with the files of one task; `None` if the job has none.

        They are links: a task on this machine sees a renewed or revoked certificate at once.
        """
        if self._directory is None:
            return None
        place = self._directory / _TASKS / file_name(str(task))
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700, parents=True)
        for name, source in self._files_of(task).items():
            (place / name).symlink_to(source)
        return place

    def publish(self, addresses: Iterable[str]) -> None:
        """Lets the user's commands find the secret by the address of a ps."""
        if self._secret is not None:
            self._secret.publish(addresses)

    def close(self) -> None:
        """Removes them. Idempotent."""
        if self._secret is not None:
            self._secret.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _files_of(self, task: Task) -> dict[str, Path]:
        """Returns the paths of a task's files by the task's names for them."""
        found = dict(self._shared)
        if self._certificates is not None:
            names = [f"{AUTHORITY}.pem", REVOKED]
            try:
                own = CertificateFiles.find(self._certificates, Identity(str(task)))
            except ClusterError:
                if task.job != "evaluator":  # an evaluator reads checkpoints and calls no other task
                    raise
            else:
                names += [own.certificate_path.name, own.key_path.name]
            found |= {name: self._certificates / name for name in names}
        return found

    def _need_directory(self) -> Path:
        if self._directory is None:
            try:
                self._directory = Path(tempfile.mkdtemp(prefix="trainband-job-"))
            except OSError as exc:
                raise ClusterError(
                    f"the files of the job cannot be stored: {exc.strerror}. Free space in {tempfile.gettempdir()}."
                ) from None
        return self._directory
