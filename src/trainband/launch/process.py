"""A task as a process of this machine, and the reaper that ends it if the launcher is killed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from trainband.cluster.task import Task
from trainband.errors import TrainbandError
from trainband.launch import exec_gate, reaper
from trainband.launch.events import OUT_OF_MEMORY
from trainband.launch.output_lines import LineSplitter
from trainband.runtime.available_memory import OomKills

_READ_BYTES = 1024 * 1024
"""More than a pipe's 64 KiB, so that one read empties it."""
_ROUNDS = 16
_POLL_S = 0.01


def _script(module_file: str, *arguments: str) -> list[str]:
    """Returns the command that runs a script with a bare Python: no site-packages, no PYTHONPATH, no trainband."""
    return [sys.executable, "-I", "-S", str(Path(module_file)), *arguments]


def _standard_input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdin is None:
        raise TypeError("the process was started without stdin=PIPE")
    return process.stdin


class Reaper:
    """The launcher's side of `reaper.py`, a process that ends the tasks if the launcher is killed.

    Args:
      stop_s: seconds between the SIGTERM and the SIGKILL that the tasks then get.
      directories: removed when the launcher and its tasks are gone.
    """

    def __init__(self, *, stop_s: float, directories: Sequence[Path] = ()) -> None:
        # In its own process group, so that a Ctrl-C to the launcher does not reach it.
        self._process = subprocess.Popen(
            _script(reaper.__file__, str(stop_s), *map(str, directories)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def register(self, group: int) -> None:
        """Makes the reaper end this process group if the launcher dies.

        Raises:
          TrainbandError: the reaper has exited.
        """
        try:
            self._write(f"+{group}\n")
        except BrokenPipeError as exc:
            raise TrainbandError(
                f"the launcher's reaper, process {self._process.pid}, has exited "
                f"(exit status {self._process.poll()}); check that {sys.executable} runs."
            ) from exc

    def release(self, group: int) -> None:
        """Undoes `register`, because the group has ended."""
        with contextlib.suppress(BrokenPipeError):  # a reaper that has been killed has nothing to release
            self._write(f"-{group}\n")

    def close(self) -> None:
        """Ends the reaper. Idempotent."""
        with contextlib.suppress(BrokenPipeError):
            _standard_input(self._process).close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5.0)

    def _write(self, text: str) -> None:
        stdin = _standard_input(self._process)
        stdin.write(text.encode())
        stdin.flush()


class TaskProcess:
    """One task, started as a process that leads its own session and process group.

    Linux's autogroup scheduler divides the cores among sessions. Two processes that train together on two cores make
    10 to 20% more steps when each has its own session (plain JAX over gloo); with a ps it makes no difference. The
    cost: each task weighs as much as any other session of the user, unless the launcher is `nice`.

    Args:
      command: what to run with this Python: a script, or `-m` and a module, and its arguments.
      reaper: ends it if the launcher is killed.
      program: what runs the command, if not this Python.
      has_input: whether its standard input is the pipe `self.input` instead of the null device.
      oom_kills: of this machine, shared by its tasks, so that one kill does not explain several exits.
    """

    def __init__(
        self,
        task: Task,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        reaper: Reaper,
        keep_lines: int,
        program: str = sys.executable,
        has_input: bool = False,
        oom_kills: OomKills | None = None,
    ) -> None:
        self.task = task
        self.address_lost = False
        self.last_lines: deque[str] = deque(maxlen=keep_lines)
        self._reaper = reaper
        self._closed = self._was_killed_here = False
        self._oom_kills = oom_kills or OomKills()
        self._is_out_of_memory: bool | None = None
        self._process = subprocess.Popen(
            _script(exec_gate.__file__, program, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
        pipes = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._streams = {name: pipe for name, pipe in pipes.items() if pipe is not None}
        self._splitters = {name: LineSplitter() for name in self._streams}
        self._pidfd: int | None = None
        try:
            for stream in self._streams.values():
                os.set_blocking(stream.fileno(), False)
            # Reports the exit without a thread. On systems without it, the launcher polls `status`.
            if hasattr(os, "pidfd_open"):
                self._pidfd = os.pidfd_open(self._process.pid)
            reaper.register(self.pid)
            # If the exec gate has already died, its exit status shows.
            with contextlib.suppress(BrokenPipeError):
                self.input.write(exec_gate.OPEN_WITH_INPUT if has_input else exec_gate.OPEN)
                self.input.flush()
                if not has_input:
                    self.input.close()
        except BaseException:
            self._send_here(signal.SIGKILL)
            self.close()
            raise

    @property
    def input(self) -> IO[bytes]:
        """The pipe to its standard input."""
        return _standard_input(self._process)

    @property
    def pid(self) -> int:
        """The id of the process and of the process group that it leads."""
        return self._process.pid

    @property
    def reports_exit(self) -> bool:
        """Whether its exit wakes the selector; otherwise `status` must be polled."""
        return self._pidfd is not None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Registers the task's output and its exit with a selector. The keys' data: (self, whether it is the exit)."""
        for stream in self._streams.values():
            selector.register(stream, selectors.EVENT_READ, (self, False))
        if self._pidfd is not None:
            selector.register(self._pidfd, selectors.EVENT_READ, (self, True))

    def read(self, selector: selectors.BaseSelector) -> Iterator[tuple[str, str]]:
        """The lines that have arrived, as (name of the stream, line). Never waits.

        Lines on stdout come before what the task printed later on stderr, so that a traceback follows the lines that
        preceded it: stderr is read first, and by then everything printed earlier is in stdout's pipe. (The order of the
        opposite case is unknown.) It returns after `_ROUNDS` rounds, even if the task prints endlessly.
        """
        for _ in range(_ROUNDS):
            errors = self._read_some("stderr", selector)
            texts = self._read_some("stdout", selector)
            if errors is None and texts is None:
                break
            for name, lines in (("stdout", texts), ("stderr", errors)):
                yield from ((name, line) for line in self._record_lines(lines or ()))

    def finish(self) -> Iterator[tuple[str, str]]:
        """The last lines of a task that has exited, if they have no line end.

        It does not wait for the pipes to close, because a process that the task left behind may hold them open.
        """
        for name, cutter in self._splitters.items():
            yield from ((name, line) for line in self._record_lines(cutter.finish()))

    def _record_lines(self, lines: Sequence[str]) -> Sequence[str]:
        self.last_lines.extend(lines)
        return lines

    def _read_some(self, name: str, selector: selectors.BaseSelector) -> list[str] | None:
        """The lines of one read; `None` if there is no data or the stream has ended."""
        stream = self._streams.get(name)
        if stream is None:
            return None
        try:
            data = os.read(stream.fileno(), _READ_BYTES)
        except BlockingIOError:
            return None
        if data:
            return self._splitters[name].feed(data)
        selector.unregister(stream)
        stream.close()
        del self._streams[name]
        return self._splitters[name].finish()

    def status(self) -> int | None:
        """The exit code, minus the number of the signal that killed it, or `OUT_OF_MEMORY`; `None` while it runs.

        The process is not reaped here: while it is a zombie, the kernel does not reuse its id, so a signal to its group
        cannot hit another one.
        """
        status = self._exit_status()
        if status in (-signal.SIGKILL, 128 + signal.SIGKILL) and not self._was_killed_here:
            if self._is_out_of_memory is None:
                self._is_out_of_memory = self._oom_kills.take()
            return OUT_OF_MEMORY if self._is_out_of_memory else status
        return status

    def _exit_status(self) -> int | None:
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll()
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def unregister_exit(self, selector: selectors.BaseSelector) -> None:
        """Unregisters the exit, which has been handled, from the selector."""
        if self._pidfd is not None:
            selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def send(self, number: int) -> bool:
        """Sends a signal to the task and the processes that it has started. Returns whether there is any."""
        return self._send_here(number)

    def _send_here(self, number: int) -> bool:
        self._was_killed_here = self._was_killed_here or number == signal.SIGKILL
        return reaper.send(self.pid, number)

    def close(self, *, leftovers_s: float = 1.0) -> None:
        """Ends the processes that the exited task left behind, reaps it and closes the pipes. Idempotent.

        Args:
          leftovers_s: seconds between SIGTERM and SIGKILL for the processes left behind. Python's resource tracker is
            one of them: it ignores SIGTERM, and frees shared memory once its parent has died.
        """
        if not self._closed:
            self._closed = True
            self._send_here(signal.SIGTERM)
            try:
                self._process.wait(timeout=leftovers_s)
            except subprocess.TimeoutExpired:
                self._send_here(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends it
                    self._process.wait(timeout=leftovers_s)
            deadline = time.monotonic() + leftovers_s
            while self._send_here(0):
                if time.monotonic() >= deadline:
                    self._send_here(signal.SIGKILL)
                    break
                time.sleep(_POLL_S)
            self._reaper.release(self.pid)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._streams.clear()
