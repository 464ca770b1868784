"""Programs that tests start as real processes: watched, with a deadline on every wait, and ended whatever happens."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

import pytest

from tests.compiled import TORN
from trainband.cluster.credentials import new_secret, write_secret
from trainband.cluster.resolvers.credentials import SECRET_FILE
from trainband.launch import ReservedPorts

ROOT = Path(__file__).resolve().parent.parent
MNIST = ROOT / "examples" / "mnist.py"
LINE = ROOT / "tests" / "line.py"
STARTUP = ROOT / "tests" / "startup"
"""What each Python does first."""
DEADLINE_S = 80.0
"""For anything that must happen; what takes longer has failed. Shorter than what a whole test may take."""

_MARK = "TRAINBAND_TEST"
_LEAVE_S = 20.0

# What C++ and Python say when something is wrong that our own words should have said.
NOISE = re.compile(
    r"Traceback|Fatal Python error|gRPC|grpc_|absl::|^[EWIF]\d{4} \d\d:|Exception ignored|resource_tracker"
    r"|terminate called|Warning:|leaked|IOError|FlightError|core dumped",
    re.MULTILINE,
)


class Program:
    """One process. Its output is collected as it comes; every wait has a deadline and shows the output when it fails.

    Args:
      name: for messages.
      command: what to run.
      environ: its environment.
      terminal: whether its two streams are a terminal of 100 columns, whose text comes as stdout.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        cwd: Path = ROOT,
        *,
        terminal: bool = False,
    ) -> None:
        self.name = name
        self._news = threading.Condition()
        self._text = {"stdout": "", "stderr": ""}
        self._is_over = False
        self.started_at = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        """Every line on either stream, with the time at which it came, on the clock of `time.monotonic`."""
        self.ended_at: float | None = None
        """When its streams were closed, which is when it ended; on that clock too."""
        screen, line = os.openpty() if terminal else (-1, subprocess.PIPE)
        if terminal:
            fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        # A process group, as a shell gives each job, so that Ctrl-C can be sent to the whole of it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=line,
            stderr=line,
            env=dict(environ),
            cwd=cwd,
            process_group=0,
        )
        if terminal:
            os.close(line)
            pipes: dict[str, IO[bytes] | None] = {"stdout": open(screen, "rb", buffering=0)}  # noqa: PTH123, SIM115
        else:
            pipes = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._open = len(pipes)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, pipe), name=f"read-{name}-{stream}", daemon=True)
            for stream, pipe in pipes.items()
        ]
        for reader in self._readers:
            reader.start()

    @property
    def is_over(self) -> bool:
        """Whether it was ended here, for good."""
        return self._is_over

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What has come on stdout by now."""
        return self._text["stdout"]

    @property
    def stderr(self) -> str:
        """What has come on stderr by now."""
        return self._text["stderr"]

    @property
    def output(self) -> str:
        """All that has come, for messages."""
        return f"--- {self.name}, stdout\n{self.stdout}--- {self.name}, stderr\n{self.stderr}---"

    def send(self, number: int) -> None:
        """A signal to this process alone."""
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """Ctrl-C on its terminal: SIGINT to its process group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait_for(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Waits until a line matches, on either stream."""
        until = time.monotonic() + deadline_s
        expression = re.compile(pattern, re.MULTILINE)
        with self._news:
            while True:
                for text in self._text.values():
                    whole = text[: text.rindex("\n") + 1] if "\n" in text else ""
                    if found := expression.search(whole):
                        return found
                left = until - time.monotonic()
                if self._open == 0 or left <= 0:
                    why = "ended" if self._open == 0 else f"did not within {deadline_s:g} s"
                    pytest.fail(f"{self.name} should have said {pattern!r}, but {why}:\n{self.output}")
                self._news.wait(left)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Waits for its end; gives the exit code, minus the signal's number for one that was killed."""
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            others = "\n".join(each.output for each in Programs.running() if each is not self)
            pytest.fail(f"{self.name} did not end within {deadline_s:g} s:\n{self.output}\n{others}")
        for reader in self._readers:
            reader.join(deadline_s)
        return code

    def succeed(self, deadline_s: float = DEADLINE_S) -> str:
        """Waits for its end with exit code 0 and no noise; gives its stdout."""
        code = self.wait(deadline_s)
        assert code == 0, f"exit code {code}\n{self.output}"
        self.expect_no_noise()
        return self.stdout

    def fail(self, pattern: str, deadline_s: float = DEADLINE_S, *, code: int = 1) -> str:
        """Waits for its end with this exit code and a one-line error that matches; gives stderr."""
        ended = self.wait(deadline_s)
        assert ended == code, f"exit code {ended} instead of {code}\n{self.output}"
        assert re.search(pattern, self.stderr, re.MULTILINE), f"no {pattern!r} in\n{self.output}"
        self.expect_no_noise()
        return self.stderr

    def expect_no_noise(self) -> None:
        """Fails where it printed a traceback or what C++ libraries print."""
        noise = NOISE.search(self.stderr)
        assert noise is None, f"{noise.group()!r} in\n{self.output}"

    def end(self) -> None:
        """Kills what runs yet of it and its group, and frees everything. Idempotent."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(1.0)
        self._is_over = True

    def _read(self, stream: str, pipe: IO[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # A terminal whose other end has gone answers with an error instead of nothing.
        with pipe, contextlib.suppress(OSError):
            while data := os.read(pipe.fileno(), 65536):
                with self._news:
                    now, text = time.monotonic(), decoder.decode(data)
                    begun = self._text[stream].rpartition("\n")[2]
                    self.lines += [(now, line) for line in (begun + text).split("\n")[:-1]]
                    self._text[stream] += text
                    self._news.notify_all()
        with self._news:
            self._open -= 1
            self.ended_at = None if self._open else time.monotonic()
            self._news.notify_all()


class Programs:
    """Starts programs and knows every process that comes of them, by a mark in their environment."""

    _all: ClassVar[weakref.WeakSet[Programs]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._all.add(self)
        self._mark = f"mark-{uuid.uuid4()}"
        self.started: list[Program] = []
        """In this order."""
        self.environ = {
            "UCX_TLS": "tcp",  # whatever network cards this machine has
            **{name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "NPROC", "PJRT_NPROC")},
            "PYTHONPATH": os.pathsep.join((str(STARTUP), str(ROOT / "src"))),
            # Fewer pool threads per process: several share few cores here.
            "NPROC": "1",
            "PJRT_NPROC": "1",
            _MARK: self._mark,
        }
        self._secret: Path | None = None

    def secret(self) -> Path:
        """The file with the secret of the jobs of several machines."""
        if self._secret is None:
            directory = Path(tempfile.mkdtemp(prefix="trainband-tests-secret-"))
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
            self._secret = directory / "secret"
            write_secret(self._secret, new_secret())
        return self._secret

    @classmethod
    def running(cls) -> list[Program]:
        """All that have been started, in any test, and not ended."""
        return [program for programs in cls._all for program in programs.started if not program.is_over]

    def start(
        self,
        name: str,
        *command: str,
        environ: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        terminal: bool = False,
    ) -> Program:
        """Starts any command; `environ` is added to the environment."""
        program = Program(name, command, {**self.environ, **(environ or {})}, cwd, terminal=terminal)
        self.started.append(program)
        return program

    def python(
        self,
        name: str,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        terminal: bool = False,
        machine: str = "",
    ) -> Program:
        """Starts this Python, with warnings as errors; in the network namespace `machine` if it is given, where tasks
        do not do without security.
        """
        if machine:
            environ = {SECRET_FILE: str(self.secret()), **(environ or {})}
        there = ("ip", "netns", "exec", machine) if machine else ()
        command = (*there, sys.executable, "-W", "error", "-W", TORN, *arguments)
        return self.start(name, *command, environ=environ, cwd=cwd, terminal=terminal)

    def trainband(
        self, *arguments: str, environ: Mapping[str, str] | None = None, terminal: bool = False, machine: str = ""
    ) -> Program:
        """Starts the program `trainband`."""
        module = ("-m", "trainband.cli.main")
        return self.python(
            f"trainband {arguments[0]}", *module, *arguments, environ=environ, terminal=terminal, machine=machine
        )

    def task(
        self,
        name: str,
        *flags: str,
        ps: Sequence[str],
        workers: Sequence[str],
        script: Path = LINE,
        machine: str = "",
    ) -> Program:
        """Starts one task of a cluster by hand, `worker:1` say, told by flags who it is."""
        job, _, index = name.partition(":")
        cluster = (f"--ps_hosts={','.join(ps)}", f"--worker_hosts={','.join(workers)}")
        return self.python(
            name, str(script), f"--job_name={job}", f"--task_index={index}", *cluster, *flags, machine=machine
        )

    def cluster(
        self,
        *flags: str,
        ps: Sequence[str],
        workers: Sequence[str],
        script: Path = LINE,
        machines: Sequence[str] = (),
    ) -> dict[str, Program]:
        """Starts every task of a cluster by hand, each on its machine. Gives them by name."""
        names = [*(f"ps:{i}" for i in range(len(ps))), *(f"worker:{i}" for i in range(len(workers)))]
        homes = dict(zip(names, machines, strict=bool(machines)))
        return {
            name: self.task(name, *flags, ps=ps, workers=workers, script=script, machine=homes.get(name, ""))
            for name in names
        }

    def processes(self) -> list[int]:
        """All living processes that were started here or by those; zombies have no environment and do not count."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def end_all(self) -> list[int]:
        """Kills all that runs yet. Returns the processes that had been left behind."""
        left = self.processes()
        for program in self.started:
            program.end()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def expect_none_left(self) -> None:
        """Fails where a process has not ended within seconds of the job's end."""
        until = time.monotonic() + _LEAVE_S
        for pid in self.processes():
            if not ended(pid, until - time.monotonic()):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                told = "\n".join(program.output for program in self.started)
                pytest.fail(f"the process {pid} was left behind: {command}\n{told}")


def ended(pid: int, deadline_s: float) -> bool:
    """Whether a process, ours or not, ends within the deadline."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], max(0.0, deadline_s))[0])
    finally:
        os.close(pidfd)


def until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Looks again and again until something that nobody tells us of has happened."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen within {deadline_s:g} s")
        threading.Event().wait(0.02)


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Starts processes; all of them end with the test, and a test that leaves one behind fails."""
    started = Programs()
    try:
        yield started
        started.expect_none_left()
    finally:
        started.end_all()


@pytest.fixture
def ports() -> Iterator[tuple[str, ...]]:
    """Addresses for five tasks, ours until the test ends."""
    with ReservedPorts(5) as reserved:
        yield reserved.addresses
