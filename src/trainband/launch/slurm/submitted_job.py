"""SubmittedJob: a job in Slurm's queue, followed to its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, YourError
from trainband.launch.backends.base import Watcher
from trainband.launch.events import Outcome, describe_status
from trainband.launch.options import Grace
from trainband.launch.request import JobRequest
from trainband.launch.slurm.commands import WAITING, JobState, SlurmCommands
from trainband.launch.slurm.output import Failure, GrowingFile, Note, TaskLine, read_line
from trainband.launch.slurm.script import EXIT_CODE
from trainband.launch.supervision import ECHO_S
from trainband.runtime.signals import signal_pipe

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.2
"""Between two looks at the files of the run."""
_FIRST_ASK_S, _MOST_ASK_S = 1.0, 10.0
"""Between two questions to Slurm's controller, which serves everybody: at first, and later."""
_SILENT_S = 600.0
"""For how long Slurm may give no answer: as long as a controller takes to restart, and more."""
_CANCELLED_S = 120.0
"""For Slurm to end what it has cancelled: its KillWait is 30 s by default."""
_HOPELESS = {
    "PartitionTimeLimit": "it asks for more time than its partition gives",
    "PartitionNodeLimit": "it asks for more nodes than its partition has",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "BadConstraints": "no node has what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobHeldUser": "it is held: scontrol release frees it",
    "JobHeldAdmin": "an administrator holds it",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
}
"""Reasons that do not pass by themselves. Source: https://slurm.schedmd.com/resource_limits.html and squeue.html."""


class SubmittedJob:
    """See `Run`. Its tasks run under a launcher of their own, within Slurm's job, and this follows what that writes.

    Args:
      request: the job.
      watcher: who is told what happens.
      commands: Slurm's.
      script: called with the directory of this run; the text of the batch script.
      options: of sbatch, beside those in the script.
      output: the file that the user wants the output in; `None` for none.
      grace: how long to wait for tasks to exit.
      clock: monotonic seconds.
    """

    spec = None
    has_been_joined = True  # the launcher there says if it is not so
    shared_directory = None

    def __init__(
        self,
        request: JobRequest,
        watcher: Watcher,
        *,
        commands: SlurmCommands,
        script: Callable[[Path], str],
        options: Sequence[str],
        output: Path | None,
        grace: Grace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = frozenset(request.tasks())
        self._watcher = watcher
        self._commands = commands
        self._script = script
        self._options = list(options)
        self._output = output
        self._grace = grace
        self._clock = clock
        self._owned = contextlib.ExitStack()
        self._job = ""
        self._state: JobState | None = None
        self._silent_since: float | None = None
        self._ask_at, self._ask_s = 0.0, _FIRST_ASK_S
        self._interrupted: int | None = None
        self._interrupted_at = 0.0
        self._cancel_at: float | None = None
        self._give_up_at: float | None = None
        self._failure: Failure | None = None
        self._last_lines: dict[Task, deque[str]] = {}
        self._outcome: Outcome | None = None

    @property
    def job(self) -> str:
        """The number of Slurm's job."""
        return self._job

    @property
    def alive(self) -> frozenset[Task]:
        """All tasks, until the job is over."""
        return self._tasks if self._outcome is None else frozenset()

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed."""
        return list(self._last_lines.get(task, ()))

    def interrupt(self, signal_number: int) -> None:
        """Has the job end, as if this process had received the signal. Any thread may call it."""
        with contextlib.suppress(OSError):  # it is over
            os.write(self._inbox, bytes([signal_number]))

    def __enter__(self) -> Self:
        try:
            self._submit()
        except BaseException:
            self._owned.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._watcher = Watcher()  # which may be what has failed
        try:
            if self._outcome is None:
                self._take(signal.SIGTERM)
                self._follow(None)
        finally:
            self._owned.close()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """See `Run.wait`."""
        until = None if timeout_s is None else self._clock() + timeout_s
        with signal_pipe(_SIGNALS) as signals:
            outcome = self._follow(until, signals)
        if outcome is None:
            raise DeadlineExceeded(f"Slurm's job {self._job} did not end within {timeout_s:g} s.")
        return outcome

    def _submit(self) -> None:
        self._inbox_end, self._inbox = os.pipe()
        os.set_blocking(self._inbox, False)
        for end in (self._inbox_end, self._inbox):
            self._owned.callback(os.close, end)
        # Here, because a job's nodes share this directory with this machine if any.
        self._run = Path(tempfile.mkdtemp(prefix=".trainband-slurm-", dir=Path.cwd()))
        self._owned.callback(shutil.rmtree, self._run, ignore_errors=True)
        files = {"stdout": self._output or self._run / "stdout"}
        if self._output is None:
            files["stderr"] = self._run / "stderr"
        else:
            self._output.write_bytes(b"")  # Slurm appends to it, so that a requeued job keeps what it has written
        self._files = {name: GrowingFile(path) for name, path in files.items()}
        named = {"stdout": "output", "stderr": "error"}
        options = [f"--{named[name]}={_literal(path)}" for name, path in files.items()]
        self._job = self._commands.submit(self._script(self._run), [*self._options, *options, "--open-mode=append"])
        self._watcher.note(f"submitted the job to Slurm, as number {self._job}")

    def _follow(self, until: float | None, signals: int | None = None) -> Outcome | None:
        """Follows the job to its end, or until then; `None` where it has not ended by then."""
        ends = [end for end in (self._inbox_end, signals) if end is not None]
        while self._outcome is None:
            now = self._clock()
            if until is not None and now >= until:
                return None
            for end in select.select(ends, [], [], _LOOK_S)[0]:
                for number in os.read(end, 64):
                    self._take(number)
            self._show()
            if (self._run / EXIT_CODE).exists():
                self._ask_at = min(self._ask_at, now + _LOOK_S)
                self._ask_s = _LOOK_S
            if now >= self._ask_at:
                self._ask(now)
            self._press(now)
        return self._outcome

    def _show(self, *, last: bool = False) -> None:
        for name, file in self._files.items():
            for line in file.finish() if last else file.read():
                self._tell(name, line)

    def _tell(self, stream: str, line: str) -> None:
        match read_line(line):
            case TaskLine(task, text):
                self._last_lines.setdefault(task, deque(maxlen=self._watcher.keep_lines)).append(text)
                self._watcher.line(task, stream, text)
            case Failure() as failure:
                self._failure = failure
            case Note(text):
                self._watcher.note(text)

    def _ask(self, now: float) -> None:
        """Asks Slurm what becomes of the job."""
        self._ask_at = now + self._ask_s
        self._ask_s = min(_MOST_ASK_S, self._ask_s * 1.3)
        try:
            state = self._commands.state(self._job)
        except YourError as exc:
            if self._silent_since is None:
                self._silent_since = now
                self._watcher.note(f"{exc}; asking again for {_SILENT_S:g} s")
            if now - self._silent_since > _SILENT_S:
                raise
            return
        self._silent_since = None
        if state is None or state.is_over:
            self._end(state)
            return
        before, self._state = self._state, state
        if before is not None and (before.name, before.reason) == (state.name, state.reason):
            return
        self._ask_s = _FIRST_ASK_S
        if state.name in WAITING:
            hopeless = _HOPELESS.get(state.reason)
            advice = f"; it will not start by itself: {hopeless}" if hopeless else ""
            why = f" ({state.reason})" if state.reason else ""
            self._watcher.note(f"Slurm's job {self._job} waits in the queue: {state.name}{why}{advice}")
        elif state.name == "RUNNING":
            self._watcher.note(f"Slurm's job {self._job} runs on {state.nodes}")

    def _end(self, state: JobState | None) -> None:
        self._show(last=True)
        code = self._exit_code()
        name = "ended" if state is None else state.name
        status = self._commands.exit_status(self._job) if code is None and state is not None else code
        if code is None and name in ("COMPLETED", "FAILED"):
            code = status  # the script has come to its end, and NFS does not show it here yet
        if self._interrupted is not None:
            number = self._interrupted
            outcome = Outcome(kind="interrupted", exit_code=128 + number, reason=signal.Signals(number).name)
        elif code == 0:
            outcome = Outcome(kind="succeeded", exit_code=0)
        elif code is not None and self._failure is not None:
            reason = self._failure.reason
            outcome = Outcome(kind="failed", exit_code=code, failed=self._failure.task, reason=reason)
        else:
            # The script has not come to its end: cancelled, out of time or memory, or a node is gone.
            how = "" if status is None else f", {describe_status(status)}"
            reason = f"Slurm's job {self._job} is {name}{how}"
            self._watcher.note(reason)
            outcome = Outcome(kind="failed", exit_code=_nonzero(status), reason=reason)
        self._outcome = outcome

    def _exit_code(self) -> int | None:
        try:
            return int((self._run / EXIT_CODE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def _take(self, number: int) -> None:
        """Has the job end."""
        now = self._clock()
        name = signal.Signals(number).name
        if self._interrupted is not None:
            if now >= self._interrupted_at + ECHO_S:
                self._cancel_at = now
            return
        self._interrupted, self._interrupted_at = number, now
        self._watcher.note(f"received {name}; cancelling Slurm's job {self._job}")
        started = self._state is not None and self._state.name not in WAITING
        # The script has the tasks end in the right order, which save; then Slurm ends what is left.
        if started:
            self._cancel("--batch", "--signal=TERM")
        self._cancel_at = now + (self._grace.stop_s + self._grace.ps_s + self._grace.kill_s if started else 0.0)
        self._ask_at, self._ask_s = now, _LOOK_S

    def _cancel(self, *options: str) -> None:
        try:
            self._commands.cancel(self._job, *options)
        except YourError as exc:  # it may have ended a moment ago, which the next answer of squeue tells
            self._watcher.note(str(exc))

    def _press(self, now: float) -> None:
        """Cancels a job that should have ended by itself, and gives up on one that Slurm cannot end."""
        if self._cancel_at is not None and now >= self._cancel_at and self._outcome is None:
            self._cancel_at = None
            self._cancel()
            self._give_up_at = now + _CANCELLED_S
            self._ask_at, self._ask_s = now, _LOOK_S
        if self._give_up_at is not None and now >= self._give_up_at and self._outcome is None:
            self._watcher.note(f"Slurm has not ended its job {self._job} within {_CANCELLED_S:g} s; giving up")
            self._end(self._state)


def _literal(path: Path) -> str:
    """A path in which Slurm replaces nothing. Source: https://slurm.schedmd.com/sbatch.html, "FILENAME PATTERN"."""
    return str(path.absolute()).replace("%", "%%")


def _nonzero(status: int | None) -> int:
    if status is None or status == 0:
        return 1
    return status if status > 0 else 128 - status
