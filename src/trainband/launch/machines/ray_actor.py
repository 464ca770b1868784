"""TaskActor: runs the tasks of one bundle of a placement group on the node where Ray placed it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trainband import version
from trainband.cluster.resolvers.own_environment import own_environment
from trainband.cluster.task import Task
from trainband.launch.machines.remote import Host, RemoteProcess
from trainband.launch.ports import ReservedPorts
from trainband.launch.process import Reaper

STOP_S = 20.0
"""Between SIGTERM and SIGKILL for a task whose actor or launcher is gone."""
_POLL_S = 0.05

Piece: TypeAlias = list[tuple[str, str]] | int
"""Output of a running task: lines, as (name of the stream, line), and last its exit status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an actor runs.

    Attributes:
      node: the id of the node.
      host: the address at which the other nodes reach it.
      directory: the working directory of the actor: a copy of the job's `working_dir`, if it has one.
      has_directory: whether the requested directory exists.
      version: of trainband.
    """

    node: str
    host: str
    directory: str
    has_directory: bool
    version: str


class TaskActor:
    """A Ray actor class, whose methods Ray's threads call.

    A task runs below `remote_task`, whose standard input this process holds: when the actor dies, however it does,
    the input ends, and `remote_task` ends the task.
    """

    def __init__(self) -> None:
        self._reserved: ReservedPorts | None = None
        self._reaper = Reaper(stop_s=STOP_S)
        self._lock = threading.Lock()
        self._run = -1
        self._process: RemoteProcess | None = None
        self._early: dict[int, list[int]] = {}
        """Signals to runs that have not begun."""

    def place(self, directory: str) -> Place:
        """Returns where it runs, and whether the directory exists."""
        import ray

        return Place(
            node=ray.get_runtime_context().get_node_id(),
            host=ray.util.get_node_ip_address(),
            directory=str(Path.cwd()),
            has_directory=Path(directory).is_dir(),
            version=version.VERSION,
        )

    def reserve(self, host: str) -> int:
        """Returns a free port of the node, reserved for the task until the next call."""
        before, self._reserved = self._reserved, ReservedPorts(1, host)
        if before is not None:
            before.close()  # only now, so that the port is a new one
        return self._reserved.ports[0]

    def run(self, number: int, task: Task, first: bytes) -> Iterator[Piece]:
        """Runs a task and yields its output as it comes, and last its status (see `RunningTask.status`).

        Args:
          number: of this run, among the actor's runs.
          task: its name.
          first: the header for `remote_task`.
        """
        here = Host(name="", command=(), by_shell=False, python=sys.executable, directory="")
        with selectors.DefaultSelector() as selector:
            with self._lock, _sigint_unblocked():
                process = RemoteProcess(task, here, first, environ=_environment(), reaper=self._reaper, keep_lines=0)
                self._run, self._process = number, process
                for signal_number in self._early.pop(number, ()):
                    process.send(signal_number)
            try:
                process.register(selector)
                while process.status() is None:
                    selector.select(None if process.reports_exit else _POLL_S)
                    if lines := list(process.read(selector)):
                        yield lines
                process.unregister_exit(selector)
                yield [*process.read(selector), *process.finish()]
                status = process.status()
            finally:
                with self._lock:
                    self._process = None
                process.close()
        assert status is not None
        yield status

    def send(self, number: int, signal_number: int) -> None:
        """Sends a signal to the task of a run, unless the run is over."""
        with self._lock:
            if number == self._run and self._process is not None:
                self._process.send(signal_number)
            elif number > self._run:
                self._early.setdefault(number, []).append(signal_number)


@contextlib.contextmanager
def _sigint_unblocked() -> Iterator[None]:
    """Context in which processes that this thread starts receive SIGINT, which Ray blocks in its workers."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """Returns the environment of this process, changed so that another Python finds the same trainband."""
    environ = own_environment()
    root = str(Path(version.__file__).parents[1])
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths and root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        environ["PYTHONPATH"] = os.pathsep.join([*paths, root])
    return environ
