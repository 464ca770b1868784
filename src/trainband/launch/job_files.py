"""JobFiles: what the tasks of a job read and nobody else may: its secret, its certificates, its pickled function."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trainband.cluster.certificate_files import AUTHORITY
from trainband.cluster.resolvers.credentials import SECRET_FILE, TLS_DIRECTORY, without_security
from trainband.cluster.resolvers.local_jobs import is_decided
from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.function import pickled
from trainband.launch.job_secret import JobSecret
from trainband.launch.machines.base import FILES
from trainband.launch.request import JobRequest

_SECRET = "secret"
_FUNCTION = "function.pickle"


class JobFiles:
    """The files of one job, in a directory of this machine. Remove them with `close`.

    Args:
      request: the job.

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
        """What each task runs with Python."""
        self._environment: dict[str, str] = {}
        self._secret: JobSecret | None = None
        self._directory: Path | None = None

    def add_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """An environment of tasks, with what tells them where the files are."""
        return {**(without_security(environ) if self._environment else environ), **self._environment}

    @property
    def directory(self) -> Path | None:
        """Where they are; `None` where the job has none."""
        return self._directory

    def make(self, tasks: Iterable[Task], hosts: Sequence[str], *, secure: bool, travel: bool) -> None:
        """Makes them.

        Args:
          tasks: those of the job.
          hosts: the names and addresses that certificates are made for.
          secure: whether the job needs a secret of its own, unless the environment says with what it is secured.
          travel: whether tasks run on machines that cannot read the files of this one.

        Raises:
          YourError: certificates are wanted, and `cryptography` is not installed.
          ClusterError: there is no place to keep them.
        """
        request = self._request
        if secure and (request.tls or not is_decided(request.environment)):
            self._secret = JobSecret(request.environment)
            self._directory = self._secret.directory
            if request.tls:
                self._secret.add_certificates(tasks, hosts)
            self._environment = {
                name: value.replace(str(self._directory), FILES) for name, value in self._secret.environment.items()
            }
        elif travel:
            self._copy_credentials()
        if self._function is not None:
            (self._need_directory() / _FUNCTION).write_bytes(self._function)

    def publish(self, addresses: Iterable[str]) -> None:
        """Lets the same user's commands find the secret by the address of a ps."""
        if self._secret is not None:
            self._secret.publish(addresses)

    def close(self) -> None:
        """Removes them. Idempotent."""
        if self._secret is not None:
            self._secret.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _copy_credentials(self) -> None:
        """Takes along what the user's environment names."""
        environ = self._request.environment
        if path := environ.get(SECRET_FILE):
            with _named(SECRET_FILE, path):
                shutil.copyfile(path, self._need_directory() / _SECRET)
            self._environment[SECRET_FILE] = f"{FILES}/{_SECRET}"
        if tls := environ.get(TLS_DIRECTORY):
            with _named(TLS_DIRECTORY, tls):
                for file in Path(tls).iterdir():
                    if file.suffix in (".pem", ".key") and file.name != f"{AUTHORITY}.key":  # which signs, and stays
                        shutil.copyfile(file, self._need_directory() / file.name)
            self._environment[TLS_DIRECTORY] = FILES

    def _need_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="trainband-job-"))
        return self._directory


@contextlib.contextmanager
def _named(variable: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ClusterError(f"{variable} = {path!r} cannot be read: {exc.strerror}.") from None
