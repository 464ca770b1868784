"""All the tasks of a cluster as processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import joined
from trainband.cluster.resolvers.credentials import without_security
from trainband.cluster.resolvers.local_jobs import is_decided
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError, DeadlineExceeded
from trainband.launch.environment import COMPILATION_CACHE, compiled_environment, task_environment
from trainband.launch.events import (
    Closed,
    Event,
    Exited,
    Interrupted,
    Outcome,
    Restart,
    Restarted,
    RestartGroup,
    Say,
    Send,
    Tick,
    describe_status,
)
from trainband.launch.function import pickled, program_of
from trainband.launch.job_secret import JobSecret
from trainband.launch.options import Grace, Restarts
from trainband.launch.ports import ReservedPorts
from trainband.launch.process import Reaper, TaskProcess
from trainband.launch.supervision import Supervision, advance
from trainband.launch.worker_group import WorkerGroup
from trainband.runtime import limits
from trainband.runtime.signals import signal_pipe

_logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.05
DESCRIPTORS = 32
DESCRIPTORS_PER_TASK = 6
"""Its three pipes, its process, its port, and one in passing."""

_GRACE = Grace()
_RESTARTS = Restarts()


class LocalCluster:
    """Starts a cluster's tasks as processes of this machine and supervises them until all have exited.

    ::

        with LocalCluster(["train.py", "--steps=100"], environ=os.environ, ps=1, workers=2, on_line=show) as cluster:
            outcome = cluster.wait()
        sys.exit(outcome.exit_code)

    The tasks learn from `TF_CONFIG` who they are, and share a secret that is made for this job, unless the environment
    says with which security it runs (see `trainband.cluster.resolve_credentials`). Leaving the `with` block ends every
    task that still runs and every process that the tasks have started, except those that moved to a process group of
    their own. If this process is killed with SIGKILL, the reaper does the same. The tasks' output is read only within
    `wait`, so a task that prints much pauses between two calls of it.

    Args:
      command: what each task runs with this Python: a script, or `-m` and a module, and its arguments. Or a function
        without arguments, such as one of a notebook: it is sent to the tasks by cloudpickle, with what it uses, and
        what it returns is dropped.
      environ: the environment of the tasks, such as `os.environ`; `task_environment` says what is added.
      ps: the number of parameter servers.
      workers: the number of workers.
      chief: whether there is a chief beside the workers.
      evaluator: whether there is a task that evaluates the checkpoints.
      host: the address of this machine that the tasks serve on.
      threads: the size of each task's XLA thread pool; when `None`, the workers share the cores.
      on_line: called with (task, `stdout` or `stderr`, line) from within `wait`.
      on_note: called from within `wait` with a sentence about what happens to the tasks.
      keep_lines: how many of each task's last lines `last_lines` returns.
      grace: how long to wait for tasks to exit.
      restarts: how often a failed task is restarted. It then finds what JAX compiled before, see
        `compiled_environment`. Without ps, several workers form a worker group, which fails with any of its tasks:
        all of them are restarted, at new addresses.
      tls: whether what they send is encrypted, with certificates that are made for this job.
      min_workers: the smallest number of workers with which a worker group continues. A worker that fails more often
        than `restarts` allows is left out, and the group restarts without it. When `None`, all are needed. A chief is
        never left out.
      clock: monotonic seconds.

    Raises:
      YourError: a function is given, and cloudpickle is not installed; or certificates are wanted, and cryptography is
        not.
      ClusterError: a number is negative, no task would train, `min_workers` is not from 1 to `workers` or there are
        ps, the host is not an address of this machine, or the function cannot be sent.
    """

    def __init__(
        self,
        command: Sequence[str] | Callable[[], object],
        *,
        environ: Mapping[str, str],
        ps: int = 1,
        workers: int = 2,
        chief: bool = False,
        evaluator: bool = False,
        host: str = "127.0.0.1",
        threads: int | None = None,
        on_line: Callable[[Task, str, str], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        keep_lines: int = 20,
        grace: Grace = _GRACE,
        restarts: Restarts = _RESTARTS,
        tls: bool = False,
        min_workers: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not command:
            raise ClusterError("LocalCluster.command is empty: give a script, or -m and a module.")
        for name, number in (("ps", ps), ("workers", workers), ("keep_lines", keep_lines)):
            if number < 0:
                raise ClusterError(f"LocalCluster.{name} must be 0 or more, got {number}.")
        if not workers and not chief:
            raise ClusterError("LocalCluster.workers is 0 and there is no chief: no task would train.")
        if threads is not None and threads < 1:
            raise ClusterError(f"LocalCluster.threads must be 1 or more, got {threads}.")
        if min_workers is not None:
            _check_min_workers(min_workers, ps=ps, workers=workers)
        self._function = pickled(command) if callable(command) else None
        self._command = [] if callable(command) else list(command)
        self._environ = dict(environ)
        self._joined: Path | None = None
        self._sizes = {"ps": ps, "worker": workers, "chief": int(chief), "evaluator": int(evaluator)}
        self._host = host
        self._threads = threads
        self._on_line = on_line
        self._on_note = on_note
        self._keep_lines = keep_lines
        self._grace = grace
        self._min_workers = workers if min_workers is None else min_workers
        self._clock = clock
        self._clusters: dict[Task, Cluster] = {}
        self._state = Supervision(alive=frozenset(), grace=grace, restarts=restarts)
        self._restarts = restarts
        self._processes: dict[Task, TaskProcess] = {}
        self._owned = contextlib.ExitStack()
        self._selector: selectors.BaseSelector
        self._reaper: Reaper
        self._reserved: ReservedPorts | None = None
        self._has_secret = True
        self._tls = tls
        self._secret: JobSecret | None = None

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

    def process_id(self, task: Task) -> int:
        """The id of a task's process and of the process group that it leads.

        Raises:
          ClusterError: there is no such task.
        """
        return self._process(task).pid

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed, on both streams.

        Raises:
          ClusterError: there is no such task.
        """
        return list(self._process(task).last_lines)

    @property
    def has_been_joined(self) -> bool:
        """Whether any task has taken part in the job, as far as is known within the `with` block; else each has run its
        program by itself.
        """
        return self._joined is None or self._joined.exists()

    def send(self, task: Task, signal_number: int) -> None:
        """Sends a signal to a task and the processes that it has started, unless the task has exited.

        Raises:
          ClusterError: there is no such task.
        """
        process = self._process(task)
        if task in self._state.alive:
            process.send(signal_number)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Supervises the tasks until all have exited.

        In the main thread, SIGINT, SIGTERM and SIGHUP to this process end the tasks: the first sends them SIGTERM, the
        second SIGKILL. A signal that this process ignores (`nohup`) stays ignored.

        Args:
          timeout_s: the longest time to wait; without limit when `None`.

        Raises:
          ClusterError: the tasks have not been started.
          DeadlineExceeded: tasks still run, and the message names them. They run on until the `with` block is left.
        """
        if not self._clusters:
            raise _not_started()
        until = None if timeout_s is None else self._clock() + timeout_s
        with self._signals():
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
            # Nothing stays behind, even if a second Ctrl-C has broken off the loop above.
            for process in self._processes.values():
                if process.task in self._state.alive:
                    process.send(signal.SIGKILL)
            if self._reserved is not None:
                self._reserved.close()
            self._owned.close()

    def __enter__(self) -> LocalCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            # The callbacks themselves may be what failed, for example on a closed terminal.
            self._on_line = self._on_note = None
        self.close()

    def _start(self) -> None:
        tasks = sum(self._sizes.values())
        limits.require_descriptors("the launcher", DESCRIPTORS + DESCRIPTORS_PER_TASK * tasks, f"for {tasks} tasks")
        self._selector = self._owned.enter_context(selectors.DefaultSelector())
        self._clusters = {cluster.task: cluster for cluster in self._plan()}
        leftovers = [self._share_what_is_compiled()] if self._restarts.limit else []
        if self._has_secret and (self._tls or not is_decided(self._environ)):
            self._secret = JobSecret(self._environ)
            self._owned.callback(self._secret.close)
            if self._tls:
                self._secret.add_certificates(self._clusters, self._host)
            self._environ = {**without_security(self._environ), **self._secret.environment}
            leftovers.append(self._secret.directory)
            self._publish()
        if self._function is not None:
            self._command = self._owned.enter_context(program_of(self._function))
        self._listen_who_joins()
        self._reaper = Reaper(stop_s=self._grace.stop_s, directories=list(filter(None, leftovers)))
        self._owned.callback(self._reaper.close)
        for task in self._clusters:
            self._start_task(task)
            self._state = Supervision(
                alive=frozenset(self._processes),
                grace=self._grace,
                restarts=self._restarts,
                group=self._worker_group(),
            )

    def _publish(self) -> None:
        if self._secret is not None:
            self._secret.publish(self.spec.address(ps) for ps in self.spec.ps)

    def _listen_who_joins(self) -> None:
        with contextlib.suppress(OSError):  # it is not known then, which is no reason to start nothing
            directory = tempfile.mkdtemp(prefix="trainband-joined-")
            self._owned.callback(shutil.rmtree, directory, ignore_errors=True)
            self._joined = Path(directory, "joined")
            self._environ[joined.VARIABLE] = str(self._joined)

    def _share_what_is_compiled(self) -> Path | None:
        """Gives the tasks a directory for what JAX compiles, which is removed at the end, whatever happens."""
        if COMPILATION_CACHE in self._environ:
            return None
        try:
            directory = Path(tempfile.mkdtemp(prefix="trainband-compiled-"))
        except OSError as exc:
            self._note(f"restarted tasks will compile their programs again: {exc}")
            return None
        self._owned.callback(shutil.rmtree, directory, ignore_errors=True)
        self._environ = compiled_environment(self._environ, directory)
        return directory

    def _plan(self) -> list[Cluster]:
        """The tasks to start, in this order."""
        sizes = {job: size for job, size in self._sizes.items() if size}
        before, self._reserved = self._reserved, ReservedPorts(sum(sizes.values()), self._host)
        if before is not None:
            before.close()  # only now, so that no task gets a port that another one has just had
        addresses = iter(self._reserved.addresses)
        spec = ClusterSpec({job: [next(addresses) for _ in range(size)] for job, size in sizes.items()})
        return [Cluster(spec=spec, task=task) for task in spec.ps + spec.workers + spec.evaluators]

    def _trainers(self) -> int | None:
        """The number of training tasks on this machine; `None` for a task that has it to itself."""
        return len(self.spec.workers) if len(self._clusters) > 1 else None

    def _worker_group(self) -> WorkerGroup | None:
        """The tasks that are restarted together."""
        tasks = frozenset(task for task in self._clusters if task.trains)
        together = len(tasks) > 1 and not self.spec.ps
        return WorkerGroup(tasks=tasks, min_workers=self._min_workers) if together else None

    def _restart_group(self, tasks: Sequence[Task]) -> None:
        """Restarts exactly these training tasks, in a newly planned cluster.

        An evaluator keeps the old addresses: it reads checkpoints and calls no other task.
        """
        for task, process in self._processes.items():
            if task.trains:
                process.close()
        self._sizes["worker"] = sum(task.job == "worker" for task in tasks)
        self._clusters = {cluster.task: cluster for cluster in self._plan()}
        for task in self._processes.keys() - self._clusters.keys():
            del self._processes[task]
        for task in tasks:
            self._start_task(task)
            self._apply(Restarted(task))

    def _start_task(self, task: Task) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environ = task_environment(
            self._environ,
            cluster=self._clusters[task],
            trainers=self._trainers(),
            cores=cores,
            threads=self._threads,
        )
        process = TaskProcess(task, self._command, environ=environ, reaper=self._reaper, keep_lines=self._keep_lines)
        self._owned.callback(process.close)
        self._processes[task] = process
        process.register(self._selector)
        _logger.info("started %s as process %d", task, process.pid)

    def _process(self, task: Task) -> TaskProcess:
        if task not in self._processes:
            raise ClusterError(f"this LocalCluster has no task {task}, only {', '.join(map(str, self._processes))}.")
        return self._processes[task]

    def _turn(self, until: float | None) -> None:
        """Waits for the next event or deadline, and handles it."""
        for key, _ in self._selector.select(self._timeout_s(until)):
            if key.data is None:
                for number in os.read(key.fd, 64):
                    self._apply(Interrupted(number))
                continue
            process, exited = key.data
            if exited:
                self._check_exit(process)
            else:
                self._print(process, process.read(self._selector))
        for process in self._processes.values():
            if process.task in self._state.alive and not process.reports_exit:
                self._check_exit(process)
        self._apply(Tick())

    def _timeout_s(self, until: float | None) -> float | None:
        deadlines = [deadline for deadline in (until, self._state.next_s) if deadline is not None]
        waits = [max(0.0, deadline - self._clock()) for deadline in deadlines]
        if any(not self._processes[task].reports_exit for task in self._state.alive):
            waits.append(_POLL_S)
        return min(waits, default=None)

    def _check_exit(self, process: TaskProcess) -> None:
        status = process.status()
        if status is not None:
            process.unregister_exit(self._selector)
            _logger.info("%s has exited: %s", process.task, describe_status(status))
            self._print(process, process.read(self._selector))
            self._print(process, process.finish())
            self._apply(Exited(process.task, status))

    def _print(self, process: TaskProcess, lines: Iterator[tuple[str, str]]) -> None:
        for name, line in lines:
            if self._on_line is not None:
                self._on_line(process.task, name, line)

    def _apply(self, event: Event) -> None:
        self._state, instructions = advance(self._state, event, self._clock())
        for instruction in instructions:
            match instruction:
                case Send(task, number):
                    _logger.debug("sending %s to %s", signal.Signals(number).name, task)
                    self._processes[task].send(number)
                case Restart(task):
                    _logger.info("restarting %s", task)
                    self._processes[task].close()
                    self._start_task(task)
                    self._apply(Restarted(task))
                case RestartGroup(tasks):
                    _logger.info("restarting %s at new addresses", ", ".join(map(str, tasks)))
                    self._restart_group(tasks)
                case Say(text):
                    self._note(text)

    def _note(self, text: str) -> None:
        if self._on_note is not None:
            self._on_note(text)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """A context in which signals to this process wake the selector."""
        with signal_pipe(_SIGNALS) as reader:
            if reader is None:
                yield
                return
            self._selector.register(reader, selectors.EVENT_READ, None)
            try:
                yield
            finally:
                self._selector.unregister(reader)


def _not_started() -> ClusterError:
    return ClusterError("this LocalCluster has not been started: use it in a with statement.")


def _check_min_workers(min_workers: int, *, ps: int, workers: int) -> None:
    if ps:
        raise ClusterError(
            f"LocalCluster.min_workers={min_workers} is for a job without ps (--ps 0), whose workers can only train "
            f"together; this one has ps={ps}, so its workers may come and go."
        )
    if not 1 <= min_workers <= workers:
        raise ClusterError(
            f"LocalCluster.min_workers must be from 1 to the number of workers, which is {workers}, got {min_workers}."
        )
