"""SupervisedCluster: starts and supervises all tasks of a job."""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from trainband.cluster.address import Address
from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.cluster.worker_group import WorkerGroup
from trainband.errors import ClusterError, DeadlineExceeded, YourError
from trainband.launch.backend import Watcher
from trainband.launch.events import (
    Closed,
    Event,
    Exited,
    Interrupted,
    NotRestarted,
    Outcome,
    Restart,
    Restarted,
    RestartGroup,
    Say,
    Send,
    Tick,
    describe_status,
)
from trainband.launch.interrupts import Interrupts
from trainband.launch.job_files import JobFiles
from trainband.launch.machine import Machines, RunningTask, TaskProgram
from trainband.launch.options import Grace
from trainband.launch.process import Reaper
from trainband.launch.request import JobRequest
from trainband.launch.shared_directories import SharedDirectories
from trainband.launch.supervision import Supervision, advance
from trainband.runtime import limits

_logger = logging.getLogger(__name__)

_POLL_S = 0.05
DESCRIPTORS = 32
DESCRIPTORS_PER_TASK = 6
"""Three pipes, the process, the port, and a temporary one."""

_GRACE = Grace()


class SupervisedCluster:
    """Starts the tasks of a job and supervises them until all have exited.

    Leaving the `with` block ends every task that still runs and every process that the tasks have started, except those
    that moved to their own process group. If this process is killed with SIGKILL, the reaper does the same. The tasks'
    output is read only within `wait`, so a task that prints a lot pauses between two calls.

    A failed task is restarted as often as the request says. On this machine it then reuses JAX's compilation cache, see
    `compiled_environment`. Without ps, several workers form a worker group, which fails if any task does: all of them
    are restarted, at new addresses. A worker that fails more often than it may be restarted is left out while
    `min_workers` remain, and the group restarts without it. A chief is never left out.

    Args:
      clock: monotonic seconds.
    """

    def __init__(
        self,
        request: JobRequest,
        machines: Machines,
        watcher: Watcher,
        *,
        grace: Grace = _GRACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._machines = machines
        self._watcher = watcher
        self._grace = grace
        self._clock = clock
        self._environ = dict(request.environment)
        self._sizes = dict(request.sizes)
        self._min_workers = request.workers if request.min_workers is None else request.min_workers
        self._files = JobFiles(request)
        self._needs_secret = True
        self._shared = SharedDirectories()
        self._clusters: dict[Task, Cluster] = {}
        self._state = Supervision(alive=frozenset(), grace=grace, restarts=request.restarts)
        self._tasks: dict[Task, RunningTask] = {}
        self._owned = contextlib.ExitStack()
        self._selector: selectors.BaseSelector
        self._reaper: Reaper
        self._interrupts: Interrupts | None = None

    @property
    def spec(self) -> ClusterSpec:
        """The tasks and their addresses.

        Raises:
          ClusterError: the tasks have not been started.
        """
        if not self._clusters:
            raise _not_started()
        return next(iter(self._clusters.values())).spec

    @property
    def alive(self) -> frozenset[Task]:
        """The tasks that `wait` has not seen exit."""
        return self._state.alive

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed on both streams.

        Raises:
          ClusterError: there is no such task.
        """
        return list(self._task(task).last_lines)

    @property
    def has_been_joined(self) -> bool:
        """Whether any task has taken part in the job, as far as is known within the `with` block; if not, each has run
        its program by itself.
        """
        return self._shared.joined is None or self._shared.joined.exists()

    @property
    def shared_directory(self) -> Path | None:
        """Where local tasks leave messages for the launcher, within the `with` block; `None` if remote."""
        return None if self._shared.joined is None else self._shared.joined.parent

    def send(self, task: Task, signal_number: int) -> None:
        """Sends a signal to a task and the processes that it has started, unless the task has exited.

        Raises:
          ClusterError: there is no such task.
        """
        running = self._task(task)
        if task in self._state.alive:
            running.send(signal_number)

    def interrupt(self, signal_number: int) -> None:
        """Makes `wait` end the tasks, as if this process had received the signal. Any thread may call it."""
        if self._interrupts is not None:
            self._interrupts.send(signal_number)

    def has_interrupt(self) -> bool:
        """Whether an unhandled signal or interrupt is pending, for machines that wait within `plan`."""
        return self._interrupts is not None and self._interrupts.has_come()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Supervises the tasks until all have exited.

        In the main thread, SIGINT, SIGTERM and SIGHUP to this process end the tasks: the first sends them SIGTERM, the
        second SIGKILL. A signal that this process ignores (`nohup`) stays ignored.

        Args:
          timeout_s: the longest time to wait; without limit when `None`.

        Raises:
          ClusterError: the tasks have not been started.
          DeadlineExceeded: tasks still run, and the message names them. Leaving the `with` block ends them.
        """
        if not self._clusters or self._interrupts is None:
            raise _not_started()
        until = None if timeout_s is None else self._clock() + timeout_s
        with self._interrupts.signals():
            while (outcome := self._state.outcome) is None:
                if until is not None and self._clock() >= until:
                    names = ", ".join(sorted(map(str, self._state.alive))) or "a job that is about to restart"
                    raise DeadlineExceeded(f"{names} did not exit within {timeout_s:g} s.")
                self._turn(until)
        return outcome

    def close(self) -> None:
        """Ends the tasks that still run and frees everything. Idempotent."""
        try:
            self._apply(Closed())
            while self._state.outcome is None:
                self._turn(None)
        finally:
            # Nothing stays behind, even if a second Ctrl-C interrupted the loop above.
            for task, running in self._tasks.items():
                if task in self._state.alive:
                    running.send(signal.SIGKILL)
            self._owned.close()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # The watcher itself may have failed, for example on a closed terminal.
            self._watcher = Watcher()
        self.close()

    def _start(self) -> None:
        tasks = sum(self._sizes.values())
        limits.require_descriptors("the launcher", DESCRIPTORS + DESCRIPTORS_PER_TASK * tasks, f"for {tasks} tasks")
        self._selector = self._owned.enter_context(selectors.DefaultSelector())
        self._owned.callback(self._machines.close)
        self._interrupts = Interrupts()
        self._owned.callback(self._interrupts.close)
        self._interrupts.register(self._selector)
        self._clusters = {cluster.task: cluster for cluster in self._plan()}
        here = self._machines.is_here
        self._owned.callback(self._shared.close)
        if here and self._request.restarts.limit:
            self._environ = self._shared.share_what_is_compiled(self._environ, self._watcher.report)
        self._owned.callback(self._files.close)
        self._files.make(self._clusters, self._hosts(), secure=self._needs_secret)
        self._environ = self._files.add_to(self._environ)
        self._files.publish(map(self.spec.address, self.spec.ps))
        if here:
            self._environ = self._shared.listen_who_joins(self._environ)
        files = self._files.directory
        leftovers = self._shared.paths if files is None else [*self._shared.paths, files]
        self._reaper = Reaper(stop_s=self._grace.stop_s, directories=leftovers)
        self._owned.callback(self._reaper.close)
        for task in self._clusters:
            self._start_task(task)
            self._state = Supervision(
                alive=frozenset(self._tasks),
                tasks=frozenset(self._clusters),
                grace=self._grace,
                restarts=self._request.restarts,
                group=self._worker_group(),
            )

    def _hosts(self) -> list[str]:
        return list(dict.fromkeys(Address.parse(self.spec.address(task), str(task)).host for task in self.spec.tasks()))

    def _plan(self) -> list[Cluster]:
        """The tasks to start, in this order."""
        spec = self._machines.plan({job: size for job, size in self._sizes.items() if size})
        return [Cluster(spec=spec, task=task) for task in spec.ps + spec.workers + spec.evaluators]

    def _worker_group(self) -> WorkerGroup | None:
        """The tasks that are restarted together."""
        tasks = frozenset(task for task in self._clusters if task.trains)
        together = len(tasks) > 1 and not self.spec.ps
        return WorkerGroup(tasks=tasks, min_workers=self._min_workers) if together else None

    def _restart_group(self, tasks: Sequence[Task]) -> None:
        """Restarts exactly these tasks, in a newly planned cluster.

        An evaluator keeps the old addresses: it reads checkpoints and calls no other task.
        """
        for task, running in self._tasks.items():
            if task.trains or task in tasks:
                running.close()
        self._sizes["worker"] = sum(task.job == "worker" for task in tasks)
        self._clusters = {cluster.task: cluster for cluster in self._plan()}
        self._files.move(self._clusters, self._hosts())
        self._files.publish(map(self.spec.address, self.spec.ps))
        for task in self._tasks.keys() - self._clusters.keys():
            del self._tasks[task]
        for task in tasks:
            self._start_task(task)
            self._apply(Restarted(task))

    def _start_task(self, task: Task) -> None:
        program = TaskProgram(command=self._files.command, environment=self._environ, files=self._files.of(task))
        keep = self._watcher.keep_lines
        running = self._machines.start(self._clusters[task], program, reaper=self._reaper, keep_lines=keep)
        self._owned.callback(running.close)
        self._tasks[task] = running
        self._watcher.started(task)
        running.register(self._selector)

    def _task(self, task: Task) -> RunningTask:
        if task not in self._tasks:
            raise ClusterError(f"this job has no task {task}, only {', '.join(map(str, self._tasks))}.")
        return self._tasks[task]

    def _turn(self, until: float | None) -> None:
        for key, _ in self._selector.select(self._timeout_s(until)):
            if key.data is None:
                assert self._interrupts is not None
                for number in self._interrupts.read():
                    self._apply(Interrupted(number))
                continue
            running, exited = key.data
            if exited:
                self._check_exit(running)
            else:
                self._print(running, running.read(self._selector))
        for running in self._tasks.values():
            if running.task in self._state.alive and not running.reports_exit:
                self._check_exit(running)
        self._apply(Tick())

    def _timeout_s(self, until: float | None) -> float | None:
        deadlines = [deadline for deadline in (until, self._state.next_s) if deadline is not None]
        waits = [max(0.0, deadline - self._clock()) for deadline in deadlines]
        if any(not self._tasks[task].reports_exit for task in self._state.alive):
            waits.append(_POLL_S)
        return min(waits, default=None)

    def _check_exit(self, running: RunningTask) -> None:
        if running.status() is not None:
            running.unregister_exit(self._selector)
            self._print(running, running.read(self._selector))
            self._print(running, running.finish())
            status = running.status()  # a remote task may have reported its exit in its last line
            assert status is not None
            _logger.info("%s has exited: %s", running.task, describe_status(status))
            self._apply(Exited(running.task, status, running.address_lost))

    def _print(self, running: RunningTask, lines: Iterator[tuple[str, str]]) -> None:
        for name, line in lines:
            self._watcher.line(running.task, name, line)

    def _apply(self, event: Event) -> None:
        self._state, instructions = advance(self._state, event, self._clock())
        for instruction in instructions:
            match instruction:
                case Send(task, number):
                    _logger.debug("sending %s to %s", signal.Signals(number).name, task)
                    self._tasks[task].send(number)
                case Restart(task):
                    _logger.info("restarting %s", task)
                    self._tasks[task].close()
                    self._start_task(task)
                    self._apply(Restarted(task))
                case RestartGroup(tasks):
                    _logger.info("restarting %s at new addresses", ", ".join(map(str, tasks)))
                    try:
                        self._restart_group(tasks)
                    except (YourError, DeadlineExceeded) as exc:
                        assert self._interrupts is not None
                        self._apply(NotRestarted(tasks, str(exc), self._interrupts.read_one()))
                case Say(text):
                    self._watcher.report(text)


def _not_started() -> ClusterError:
    return ClusterError("this job has not been started; use it in a with statement.")
