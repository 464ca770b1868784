"""RemoteMachines: the tasks of a job on other machines, each started by a command such as ssh or srun."""

from __future__ import annotations

import json
import select
import shlex
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import tf_config
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, YourError
from trainband.launch.environment import travelling
from trainband.launch.machine import TaskProgram
from trainband.launch.machines.remote_input import RemoteInput
from trainband.launch.machines.remote_task import REPORT, header
from trainband.launch.process import Reaper, TaskProcess
from trainband.runtime.overrides import override
from trainband.runtime.waiting import Say, Waiting
from trainband.version import VERSION

START_S = 60.0
"""How long a machine may take to give its first answer."""
KILL_HERE_S = 2.0
"""After a SIGKILL to a task, how long its machine has to report its exit before its local command is killed."""
_CLOCKS_S = 5.0
"""Difference from which the user is warned of a machine's clock, which dates log lines and checkpoints. Nothing in
trainband depends on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine, and how commands are run there.

    Attributes:
      name: the name or address at which the other tasks reach it.
      command: run here, it runs the command appended to it there: `("ssh", "a")`, `("srun", "--nodelist=a")`.
      by_shell: whether a shell parses the appended command, as with ssh.
      python: the Python there.
      directory: where tasks run there.
    """

    name: str
    command: tuple[str, ...]
    by_shell: bool
    python: str
    directory: str

    def runs(self, module: str) -> list[str]:
        """Returns the command that runs one of trainband's modules there."""
        there = [self.python, "-m", module]
        return [*self.command, *((f"exec {shlex.join(there)}",) if self.by_shell else there)]


class RemoteMachines(ABC):
    """Other machines, as `Machines`. Subclasses choose the machine of each task.

    Args:
      threads: the size of each task's XLA thread pool; when `None`, the workers of a machine share its cores.
      variables: the names of further environment variables that tasks get.
      stop_s: seconds between SIGTERM and SIGKILL for a task whose launcher is gone.
    """

    is_here = False

    def __init__(
        self,
        environ: Mapping[str, str],
        say: Say,
        *,
        threads: int | None = None,
        variables: Collection[str] = (),
        stop_s: float = 20.0,
    ) -> None:
        self._environ = dict(environ)
        self._say = say
        self._threads = threads
        self._variables = variables
        self._stop_s = stop_s
        self._sessions: dict[Host, _Session] = {}
        self._places: dict[Task, Host] = {}

    @abstractmethod
    def place(self, sizes: Mapping[str, int], lost: Collection[Host]) -> dict[Task, Host]:
        """Returns where each task runs.

        Args:
          sizes: how many tasks each job has.
          lost: machines that are no longer reachable.

        Raises:
          YourError: there are too few machines.
        """

    def plan(self, sizes: Mapping[str, int]) -> ClusterSpec:
        """Leaves out machines that were reached before and no longer are."""
        lost: set[Host] = set()
        while True:
            self._places = self.place(sizes, lost)
            wanted: dict[Host, list[Task]] = {}
            for task, host in self._places.items():
                wanted.setdefault(host, []).append(task)
            known = set(self._sessions)
            for host in wanted:
                if host not in self._sessions:
                    self._sessions[host] = _Session(host, self._environ)
            addresses: dict[Task, str] = {}
            for host, tasks in wanted.items():
                try:
                    ports = self._ask(host, len(tasks))
                except (YourError, DeadlineExceeded) as exc:
                    self._sessions.pop(host).close()
                    if host not in known:
                        raise
                    self._say(f"{exc} The job continues without it.")
                    lost.add(host)
                    break
                addresses.update({task: _address(host.name, port) for task, port in zip(tasks, ports, strict=True)})
            else:
                return ClusterSpec({job: [addresses[Task(job, i)] for i in range(size)] for job, size in sizes.items()})

    def start(self, cluster: Cluster, program: TaskProgram, *, reaper: Reaper, keep_lines: int) -> RemoteProcess:
        host = self._places[cluster.task]
        sent = TaskProgram(
            command=program.command, environment=travelling(program.environment, self._variables), files=program.files
        )
        first = header(
            sent, tf_config.write(cluster), directory=host.directory, threads=self._threads, stop_s=self._stop_s
        )
        return RemoteProcess(cluster.task, host, first, environ=self._environ, reaper=reaper, keep_lines=keep_lines)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _ask(self, host: Host, ports: int) -> list[int]:
        session = self._sessions[host]
        sent = time.time()
        answer = session.ask({"ports": ports, "directory": host.directory}, self._say)
        if answer["version"] != VERSION:
            raise YourError(
                f"{host.name} has trainband {answer['version']} at {host.python}, and this machine {VERSION}; "
                "install the same version on both."
            )
        if not answer["exists"]:
            raise YourError(
                f"{host.name} lacks the tasks' working directory {host.directory}. Share it, name another "
                "(-o directory=PATH), or let trainband copy the files (-o sync=true)."
            )
        apart = max(sent - answer["time"], answer["time"] - time.time())
        if apart > _CLOCKS_S:
            self._say(
                f"WARNING: the clock of {host.name} is {apart:.0f} s off from this machine's; do not trust its dates"
            )
        found: list[int] = answer["ports"]
        return found


class _Session:
    """A conversation with one machine's `remote_machine`."""

    def __init__(self, host: Host, environ: Mapping[str, str]) -> None:
        self._host = host
        try:
            self._process = subprocess.Popen(
                host.runs("trainband.launch.remote_machine"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                process_group=0,  # so that only the launcher gets a Ctrl-C
            )
        except OSError as exc:
            raise YourError(f"{host.command[0]} cannot be run on this machine: {exc.strerror}.") from None
        self._input = RemoteInput(_pipe(self._process.stdin), f"questions to {host.name}")

    def ask(self, request: Mapping[str, Any], say: Say) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
          YourError: there is none; the message has the machine's output instead.
        """
        self._input.send_line(json.dumps(request).encode())
        line = self._read_line(say)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise YourError(
                f"{self._host.name} answered {line.decode(errors='replace')!r}; check what prints to stdout there."
            )
        return answer

    def _read_line(self, say: Say) -> bytes:
        stdout = _pipe(self._process.stdout)
        waiting = Waiting(START_S, say)
        there = shlex.join(self._host.runs("trainband.launch.remote_machine"))
        while not select.select([stdout], [], [], 0.1)[0]:
            waiting.check(f"{self._host.name} to answer", f"check that this works: {there}")
        line = stdout.readline()
        if not line:
            raise self._failure()
        return line

    def _failure(self) -> YourError:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = None
        said = "" if code is None else _pipe(self._process.stderr).read().decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else f"{self._host.command[0]} exited with code {code}"
        advice = ""
        if "No module named" in last or "not found" in last or "No such file" in last:
            advice = " Install trainband there, or name its Python (-o python=PATH)."
        return YourError(f"{self._host.name} cannot run tasks: {last}.{advice}")

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._input.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class RemoteProcess(TaskProcess):
    """One task on another machine, represented by the local process of the command that runs it.

    Args:
      first: the header for `remote_task`.
      reaper, keep_lines: as for `TaskProcess`.
    """

    def __init__(
        self, task: Task, host: Host, first: bytes, *, environ: Mapping[str, str], reaper: Reaper, keep_lines: int
    ) -> None:
        self._host = host
        self._reported: int | None = None
        self._kill_here: threading.Timer | None = None
        program, *command = host.runs("trainband.launch.machines.remote_task")
        super().__init__(
            task, command, environ=environ, reaper=reaper, keep_lines=keep_lines, program=program, has_input=True
        )
        self._remote = RemoteInput(self.input, f"input of {task}")
        self._remote.send_line(first)

    @override
    def send(self, number: int) -> bool:
        """Sends a signal to the task. Returns whether its local command still runs."""
        if number:
            self._remote.send_line(b"signal %d" % number)
        if number == signal.SIGKILL and self._kill_here is None:
            # An unreachable machine never answers, and the command would wait for it.
            self._kill_here = threading.Timer(KILL_HERE_S, self._send_here, (signal.SIGKILL,))
            self._kill_here.daemon = True
            self._kill_here.start()
        return self._send_here(0)

    @override
    def _record_lines(self, lines: Sequence[str]) -> Sequence[str]:
        for line in lines:
            if line.startswith(REPORT):
                self._reported = int(line.removeprefix(REPORT))
        return super()._record_lines([line for line in lines if not line.startswith(REPORT)])

    @override
    def status(self) -> int | None:
        """The task's status, if reported, else the command's."""
        status = super().status()
        return status if status is None or self._reported is None else self._reported

    @override
    def close(self, *, leftovers_s: float = 5.0) -> None:
        """Closes the task's input, which ends it if it still runs."""
        if self._kill_here is not None:
            self._kill_here.cancel()
        super().close(leftovers_s=leftovers_s)
        self._remote.close()
