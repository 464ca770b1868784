"""A task as a process of this machine, and the process that guards it."""

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
from trainband.launch.output_lines import LineSplitter

_READ_BYTES = 1024 * 1024
"""Over the 64 KiB that a pipe holds, so that one read takes all that is there."""
_ROUNDS = 16
_BETWEEN_LOOKS_S = 0.01


def _script(module_file: str, *arguments: str) -> list[str]:
    """Runs a file of ours with a bare Python: no site-packages, no user's PYTHONPATH, no trainband."""
    return [sys.executable, "-I", "-S", str(Path(module_file)), *arguments]


def _standard_input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdin is None:
        raise TypeError("the process was started without stdin=PIPE")
    return process.stdin


class Reaper:
    """The launcher's side of `warden.py`: ends the tasks when the launcher is killed.

    Args:
      stop_s: seconds that the tasks then have between SIGTERM and SIGKILL.
      directory: what is to be removed when the launcher and its tasks have ended.
    """

    def __init__(self, *, stop_s: float, directory: Path | None = None) -> None:
        # In a group of its own, so that Ctrl-C on the terminal, which goes to the launcher's, does not reach it.
        self._process = subprocess.Popen(
            _script(reaper.__file__, str(stop_s), *([] if directory is None else [str(directory)])),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def guard(self, group: int) -> None:
        """Ends this process group should the launcher die.

        Raises:
          TrainbandError: the warden is not there any more.
        """
        try:
            self._write(f"+{group}\n")
        except BrokenPipeError as exc:
            raise TrainbandError(
                f"the process {self._process.pid} that guards the tasks of this launcher has ended "
                f"(exit status {self._process.poll()}); see whether {sys.executable} runs."
            ) from exc

    def release(self, group: int) -> None:
        """The group has ended."""
        with contextlib.suppress(BrokenPipeError):  # a warden that has been killed has nothing to release
            self._write(f"-{group}\n")

    def close(self) -> None:
        """Sends the warden home. Idempotent."""
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
    """One task, started as a process that leads a session, and so a process group, of its own.

    Linux's autogroup scheduler shares a machine's cores out by session. Two processes that compute in step on two cores
    take 10 to 20% more steps when each is in its own (bare JAX over gloo), and those with a ps no fewer. The price:
    each task weighs as much as any other session that the user has, unless the launcher is `nice`.

    Args:
      task: which.
      command: what to run with this Python: a script or `-m` and a module, and its arguments.
      environ: its whole environment.
      guard: ends it should the launcher be killed.
      keep_lines: how many of its last lines to keep.
    """

    def __init__(
        self, task: Task, command: Sequence[str], *, environ: Mapping[str, str], guard: Reaper, keep_lines: int
    ) -> None:
        self.task = task
        self.last_lines: deque[str] = deque(maxlen=keep_lines)
        self._guard = guard
        self._closed = False
        self._process = subprocess.Popen(
            _script(exec_gate.__file__, sys.executable, *command),
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
            # Tells us of its end without a thread; where the system has no such thing, we look now and then.
            if hasattr(os, "pidfd_open"):
                self._pidfd = os.pidfd_open(self._process.pid)
            guard.guard(self.pid)
            # A gate that has died already is seen by its exit status.
            with contextlib.suppress(BrokenPipeError), _standard_input(self._process) as stdin:
                stdin.write(exec_gate.OPEN)
        except BaseException:
            self.send(signal.SIGKILL)
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the process and of the group that it leads."""
        return self._process.pid

    @property
    def tells_its_end(self) -> bool:
        """Whether its end wakes the selector; else somebody must ask `status` now and then."""
        return self._pidfd is not None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Has the selector wake for what the task prints and for its end. The keys' data: (self, is it the end)."""
        for stream in self._streams.values():
            selector.register(stream, selectors.EVENT_READ, (self, False))
        if self._pidfd is not None:
            selector.register(self._pidfd, selectors.EVENT_READ, (self, True))

    def read(self, selector: selectors.BaseSelector) -> Iterator[tuple[str, str]]:
        """The lines that have come, as (stream's name, line). Never waits.

        What the task has printed on stdout and then on stderr comes in this order, so that a traceback stands
        behind the lines before it: what is on stderr is taken first, and whatever came before it is on
        stdout by then. (The other way round the order of two pipes cannot be known.) A task that prints
        without end has its turn end after `_ROUNDS` rounds.
        """
        for _ in range(_ROUNDS):
            errors = self._read_some("stderr", selector)
            texts = self._read_some("stdout", selector)
            if errors is None and texts is None:
                break
            for name, lines in (("stdout", texts), ("stderr", errors)):
                self.last_lines.extend(lines or ())
                yield from ((name, line) for line in lines or ())

    def finish(self) -> Iterator[tuple[str, str]]:
        """The last lines of an ended task, where it has not ended them.

        Its pipes may live on, held open by a process that it has left behind, and so are not waited for.
        """
        for name, cutter in self._splitters.items():
            lines = cutter.finish()
            self.last_lines.extend(lines)
            yield from ((name, line) for line in lines)

    def _read_some(self, name: str, selector: selectors.BaseSelector) -> list[str] | None:
        """The lines of one read, `None` when nothing is there or the stream has ended."""
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
        """The exit code, minus a signal's number, or `None` while it runs.

        The ended process is not reaped here: as long as it is a zombie, the kernel gives its number to
        nobody else, so a signal to its group cannot go astray.
        """
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll()
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def forget_end(self, selector: selectors.BaseSelector) -> None:
        """Takes the end, which was noticed, off the selector."""
        if self._pidfd is not None:
            selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def send(self, number: int) -> bool:
        """Sends a signal to the task and the processes that it has started. Returns whether anybody was there."""
        return reaper.send(self.pid, number)

    def close(self, *, leftovers_s: float = 1.0) -> None:
        """Ends what the task has left behind, reaps it and closes the pipes. The task itself has ended. Idempotent.

        Args:
          leftovers_s: seconds that its left processes have between SIGTERM and SIGKILL. Python's resource
            tracker is such a one: it ignores SIGTERM and frees shared memory once its parent has died.
        """
        if not self._closed:
            self._closed = True
            self.send(signal.SIGTERM)
            try:
                self._process.wait(timeout=leftovers_s)
            except subprocess.TimeoutExpired:
                self.send(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends it: the kernel's affair
                    self._process.wait(timeout=leftovers_s)
            deadline = time.monotonic() + leftovers_s
            while self.send(0):
                if time.monotonic() >= deadline:
                    self.send(signal.SIGKILL)
                    break
                time.sleep(_BETWEEN_LOOKS_S)
            self._guard.release(self.pid)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._streams.clear()
