"""SubmittedJob: a job submitted to Slurm and followed to its end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from trainband.cluster.task import Task
from trainband.errors import DeadlineExceeded, YourError
from trainband.launch.backend import Watcher
from trainband.launch.events import Outcome, describe_status
from trainband.launch.interrupts import Interrupts
from trainband.launch.options import Grace
from trainband.launch.request import JobRequest
from trainband.launch.slurm.commands import WAITING, JobState, SlurmCommands
from trainband.launch.slurm.output import JobOutput
from trainband.launch.slurm.script import EXIT_CODE
from trainband.launch.supervision import ECHO_S
from trainband.runtime.regular_files import write_regular

_LOOK_S = 0.2
"""Between two reads of the run's files."""
_FIRST_ASK_S, _MOST_ASK_S = 1.0, 10.0
"""Between two queries of Slurm's controller, which serves all users: at first, and later."""
_SILENT_S = 600.0
"""For how long Slurm may not answer: longer than a controller takes to restart."""
_CANCELLED_S = 120.0
"""How long to wait for Slurm to end a cancelled job: its KillWait is 30 s by default."""
_HOPELESS = {
    "PartitionTimeLimit": "it requests more time than its partition allows",
    "PartitionNodeLimit": "it requests more nodes than its partition has",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition accepts no jobs",
    "BadConstraints": "no node meets its constraints",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "JobHeldUser": "it is held; scontrol release frees it",
    "JobHeldAdmin": "an administrator holds it",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
}
"""Reasons that do not resolve themselves. Source: https://slurm.schedmd.com/resource_limits.html and squeue.html."""


@dataclass(slots=True)
class _Questions:
    """Schedule of the queries to Slurm's controller, and since when it has not answered."""

    at: float = 0.0
    every_s: float = _FIRST_ASK_S
    silent_since: float | None = None


class SubmittedJob:
    """A job in Slurm's queue, as a `Run`.

    Its tasks run under another launcher, within the Slurm job, whose output this follows.

    Args:
      script: called with the directory of this run; the text of the batch script.
      options: of sbatch, beside those in the script.
      output: the file for the user's copy of the output; `None` for none.
      clock: monotonic seconds.
    """

    spec = None
    has_been_joined = True  # the launcher there reports if not
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
        self._interrupts: Interrupts | None = None
        self._shown = JobOutput({})
        self._job = ""
        self._state: JobState | None = None
        self._questions = _Questions()
        self._interrupted: tuple[int, float] | None = None
        """The first signal received, and when."""
        self._cancel_at: float | None = None
        self._deadline: float | None = None
        self._outcome: Outcome | None = None

    @property
    def job(self) -> str:
        """The id of the Slurm job."""
        return self._job

    @property
    def alive(self) -> frozenset[Task]:
        """All tasks, until the job is over."""
        return self._tasks if self._outcome is None else frozenset()

    def last_lines(self, task: Task) -> list[str]:
        return self._shown.last_lines(task)

    def interrupt(self, signal_number: int) -> None:
        """Ends the job as if this process had received the signal. Any thread may call it."""
        if self._interrupts is not None:
            self._interrupts.send(signal_number)

    def __enter__(self) -> Self:
        try:
            self._submit()
        except BaseException:
            self._owned.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self._watcher = Watcher()  # the old one may have failed
        try:
            if self._outcome is None:
                self._handle_signal(signal.SIGTERM)
                self._follow(None)
        finally:
            self._owned.close()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        until = None if timeout_s is None else self._clock() + timeout_s
        assert self._interrupts is not None
        with self._interrupts.signals():
            outcome = self._follow(until)
        if outcome is None:
            raise DeadlineExceeded(f"Slurm job {self._job} did not end within {timeout_s:g} s.")
        return outcome

    def _submit(self) -> None:
        self._interrupts = Interrupts()
        self._owned.callback(self._interrupts.close)
        # Here, because a job's nodes share this directory with this machine, if any.
        self._run = Path(tempfile.mkdtemp(prefix=".trainband-slurm-", dir=Path.cwd()))
        self._owned.callback(shutil.rmtree, self._run, ignore_errors=True)
        files = {"stdout": self._output or self._run / "stdout"}
        if self._output is None:
            files["stderr"] = self._run / "stderr"
        elif self._output.is_file() or not self._output.exists():  # not /dev/null
            write_regular(self._output, b"")  # Slurm appends to it, so that a requeued job keeps its output
        self._shown = JobOutput(files)
        named = {"stdout": "output", "stderr": "error"}
        options = [f"--{named[name]}={_literal(path)}" for name, path in files.items()]
        self._job = self._commands.submit(self._script(self._run), [*self._options, *options, "--open-mode=append"])
        self._watcher.report(f"submitted the job to Slurm as job {self._job}")

    def _follow(self, until: float | None) -> Outcome | None:
        """Follows the job to its end, or until `until`; returns `None` if it has not ended by then."""
        assert self._interrupts is not None
        while self._outcome is None:
            now = self._clock()
            if until is not None and now >= until:
                return None
            for number in self._interrupts.read(_LOOK_S):
                self._handle_signal(number)
            self._shown.show(self._watcher)
            if (self._run / EXIT_CODE).exists():
                self._questions.at = min(self._questions.at, now + _LOOK_S)
                self._questions.every_s = _LOOK_S
            if now >= self._questions.at:
                self._ask(now)
            self._press(now)
        return self._outcome

    def _ask(self, now: float) -> None:
        self._questions.at = now + self._questions.every_s
        self._questions.every_s = min(_MOST_ASK_S, self._questions.every_s * 1.3)
        try:
            state = self._commands.state(self._job)
        except YourError as exc:
            if self._questions.silent_since is None:
                self._questions.silent_since = now
                self._watcher.report(f"{exc}; asking again for {_SILENT_S:g} s")
            if now - self._questions.silent_since > _SILENT_S:
                raise
            return
        self._questions.silent_since = None
        if state is None or state.is_over:
            self._end(state)
            return
        before, self._state = self._state, state
        if before is not None and (before.name, before.reason) == (state.name, state.reason):
            return
        self._questions.every_s = _FIRST_ASK_S
        if state.name in WAITING:
            hopeless = _HOPELESS.get(state.reason)
            advice = f"; it will not start by itself: {hopeless}" if hopeless else ""
            why = f" ({state.reason})" if state.reason else ""
            self._watcher.report(f"Slurm job {self._job} is in the queue: {state.name}{why}{advice}")
        elif state.name == "RUNNING":
            self._watcher.report(f"Slurm job {self._job} runs on {state.nodes}")

    def _end(self, state: JobState | None) -> None:
        self._shown.show(self._watcher, last=True)
        code = self._exit_code()
        name = "ended" if state is None else state.name
        status = self._commands.exit_status(self._job) if code is None and state is not None else code
        if code is None and name in ("COMPLETED", "FAILED"):
            code = status  # the script has finished, and NFS does not show it here yet
        if self._interrupted is not None:
            number = self._interrupted[0]
            outcome = Outcome(kind="interrupted", exit_code=128 + number, reason=signal.Signals(number).name)
        elif code == 0:
            outcome = Outcome(kind="succeeded", exit_code=0)
        elif code is not None and (failure := self._shown.failure) is not None:
            outcome = Outcome(kind="failed", exit_code=code, failed=failure.task, reason=failure.reason)
        else:
            # The script has not finished: cancelled, out of time or memory, or a node is gone.
            how = "" if status is None else f", {describe_status(status)}"
            reason = f"Slurm job {self._job} is {name}{how}"
            self._watcher.report(reason)
            outcome = Outcome(kind="failed", exit_code=_nonzero(status), reason=reason)
        self._outcome = outcome

    def _exit_code(self) -> int | None:
        try:
            return int((self._run / EXIT_CODE).read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def _handle_signal(self, number: int) -> None:
        now = self._clock()
        name = signal.Signals(number).name
        if self._interrupted is not None:
            if now >= self._interrupted[1] + ECHO_S:
                self._cancel_at = now
            return
        self._interrupted = number, now
        self._watcher.report(f"received {name}; cancelling Slurm job {self._job}")
        started = self._state is not None and self._state.name not in WAITING
        # The script ends the tasks in the right order, so they save; then Slurm ends what is left.
        if started:
            self._cancel("--batch", "--signal=TERM")
        self._cancel_at = now + (self._grace.stop_s + self._grace.ps_s + self._grace.kill_s if started else 0.0)
        self._questions.at, self._questions.every_s = now, _LOOK_S

    def _cancel(self, *options: str) -> None:
        try:
            self._commands.cancel(self._job, *options)
        except YourError as exc:  # it may have just ended, which the next squeue shows
            self._watcher.report(str(exc))

    def _press(self, now: float) -> None:
        """Cancels a job that should have ended by itself, and gives up on one that Slurm cannot end."""
        if self._cancel_at is not None and now >= self._cancel_at and self._outcome is None:
            self._cancel_at = None
            self._cancel()
            self._deadline = now + _CANCELLED_S
            self._questions.at, self._questions.every_s = now, _LOOK_S
        if self._deadline is not None and now >= self._deadline and self._outcome is None:
            self._watcher.report(f"Slurm has not ended job {self._job} within {_CANCELLED_S:g} s; giving up")
            self._end(self._state)


def _literal(path: Path) -> str:
    """Escapes a path for Slurm. Source: https://slurm.schedmd.com/sbatch.html, "FILENAME PATTERN"."""
    return str(path.absolute()).replace("%", "%%")


def _nonzero(status: int | None) -> int:
    if status is None or status == 0:
        return 1
    return status if status > 0 else 128 - status
