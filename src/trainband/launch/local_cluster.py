"""Running all the tasks of a cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import tf_config
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError, DeadlineExceeded
from trainband.launch.ports import ReservedPorts
from trainband.launch.process import Reaper, TaskProcess
from trainband.launch.supervision import (
    Began,
    Event,
    Exited,
    Grace,
    Interrupted,
    Left,
    Outcome,
    Restarts,
    Say,
    Send,
    Start,
    StartGroup,
    Supervision,
    Tick,
    advance,
)
from trainband.launch.worker_group import WorkerGroup

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BETWEEN_LOOKS_S = 0.05
_THREAD_POOLS = ("NPROC", "PJRT_NPROC")
_GRACE = Grace()
_RESTARTS = Restarts()
_PLATFORMS = "JAX_PLATFORMS"
_COMPILED = "JAX_COMPILATION_CACHE_DIR"


def task_environment(
    environ: Mapping[str, str], *, cluster: Cluster, trainers: int | None, cores: int, threads: int | None = None
) -> dict[str, str]:
    """The environment of one of several tasks that share this machine.

    Beside `TF_CONFIG` it sets, where the user has not:

    - `NPROC` and `PJRT_NPROC`, the size of XLA's thread pools, to the task's share of the cores: each
      task takes the whole machine for itself otherwise, and on shared cores the pools' threads
      then mostly wait for one another.
    - `JAX_PLATFORMS=cpu` for a ps and an evaluator, so that they take no memory on a card that the workers compute on.
    - `KERAS_BACKEND=jax`: Keras would take TensorFlow, if it is not told.
    - `PYTHONUNBUFFERED=1`, always, so that lines come as they are printed.

    Args:
      environ: the user's.
      cluster: which task it is.
      trainers: how many tasks that train share this machine; `None` for a task that has it to itself.
      cores: how many this machine gives us.
      threads: the pools' size; the share when `None`. It beats the user's environment.
    """
    result = dict(environ)
    result.setdefault("KERAS_BACKEND", "jax")
    if threads is not None:
        result.update(dict.fromkeys(_THREAD_POOLS, str(threads)))
    elif trainers is not None and not any(name in environ for name in _THREAD_POOLS):
        result.update(dict.fromkeys(_THREAD_POOLS, str(max(1, cores // max(1, trainers)))))
    if not cluster.task.trains:
        result.setdefault(_PLATFORMS, "cpu")
    result["PYTHONUNBUFFERED"] = "1"
    result[tf_config.VARIABLE] = tf_config.write(cluster)
    return result


def compiled_environment(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The environment of tasks that find in a directory what JAX has compiled before: nearly all of a second start.

    Measured, for 784-100-10 on two cores: the first step of a worker that comes back costs 0.3 s instead of 0.7 s.

    Args:
      environ: the user's. Where it says itself where compiled programs go, it stays as it is.
      directory: that the tasks share.
    """
    if _COMPILED in environ:
        return dict(environ)
    # JAX would keep only what has taken a second to compile.
    kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **environ}
    return {**kept, _COMPILED: str(directory)}


def _not_started() -> ClusterError:
    return ClusterError("this LocalCluster has not started: use it in a with statement.")


def _check_min_workers(min_workers: int, *, ps: int, workers: int) -> None:
    if ps:
        raise ClusterError(
            f"LocalCluster.min_workers={min_workers} is for a job without ps (--ps 0), whose workers can only train "
            f"together; this one has ps={ps}, and there workers come and go as they like."
        )
    if not 1 <= min_workers <= workers:
        raise ClusterError(
            f"LocalCluster.min_workers must be from 1 to the number of workers, which is {workers}, got {min_workers}."
        )


class LocalCluster:
    """Starts a cluster's tasks as processes of this machine and sees them to their end.

    ::

        with LocalCluster(["train.py", "--steps=100"], environ=os.environ, ps=1, workers=2, on_line=show) as cluster:
            outcome = cluster.wait()
        sys.exit(outcome.exit_code)

    The tasks learn who they are from `TF_CONFIG`. Leaving the `with` block ends whatever still runs, also
    what the tasks have started themselves, unless that has made itself a process group of its own; when
    this process is killed with SIGKILL, a warden process does the same. What the tasks print is read
    in `wait` and nowhere else, so a task that prints much pauses between two calls of it.

    Args:
      command: what each task runs with this Python: a script, or `-m` and a module, and its arguments.
      environ: the environment of the tasks, as `os.environ`; `task_environment` says what is added.
      ps: how many parameter servers.
      workers: how many workers.
      chief: whether there is a chief beside the workers.
      evaluator: whether there is a task that evaluates the checkpoints.
      host: the address of this machine that the tasks serve on.
      threads: size of each task's XLA thread pool; the cores shared out among the workers when `None`.
      on_line: called with (task, `stdout` or `stderr`, line) from within `wait`.
      on_note: called with a sentence about what happens to the tasks, from within `wait`.
      keep_lines: how many of each task's last lines `last_lines` gives.
      grace: how long to wait for tasks to end.
      restarts: how often a task that fails is started again. It then finds what JAX has compiled before: see
        `compiled_environment`. Without ps, several workers are one job that dies with
        any of them: all that train are started again, at new addresses.
      min_workers: how many workers such a job goes on with at the least: one that fails more often than `restarts`
        allows is left out, and the job starts again without it. All of them when `None`. A chief is never left out.
      clock: seconds that never go back.

    Raises:
      ClusterError: a number is negative, no task would train, `min_workers` is not from 1 to `workers` or there are
        ps, or the host is not this machine's.
    """

    def __init__(
        self,
        command: Sequence[str],
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
        min_workers: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not command:
            raise ClusterError("LocalCluster.command is empty: give a script, or -m and a module.")
        for name, number in (("ps", ps), ("workers", workers), ("keep_lines", keep_lines)):
            if number < 0:
                raise ClusterError(f"LocalCluster.{name} must be 0 or more, got {number}.")
        if not workers and not chief:
            raise ClusterError("LocalCluster.workers is 0 and there is no chief: nobody would train.")
        if threads is not None and threads < 1:
            raise ClusterError(f"LocalCluster.threads must be 1 or more, got {threads}.")
        if min_workers is not None:
            _check_min_workers(min_workers, ps=ps, workers=workers)
        self._command = list(command)
        self._environ = dict(environ)
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
        self._guard: Reaper
        self._reserved: ReservedPorts | None = None

    @property
    def spec(self) -> ClusterSpec:
        """Who is where.

        Raises:
          ClusterError: the tasks have not been started.
        """
        if not self._clusters:
            raise _not_started()
        return next(iter(self._clusters.values())).spec

    @property
    def alive(self) -> frozenset[Task]:
        """The tasks that have not ended, as far as `wait` has seen."""
        return self._state.alive

    def process_id(self, task: Task) -> int:
        """The number of a task's process, which leads a process group of the same number.

        Raises:
          ClusterError: there is no such task.
        """
        return self._process(task).pid

    def last_lines(self, task: Task) -> list[str]:
        """The last lines that a task has printed, on both streams. Raises `ClusterError`: no such task."""
        return list(self._process(task).last_lines)

    def send(self, task: Task, signal_number: int) -> None:
        """Sends a signal to a task and what it has started; one that has ended gets nothing.

        Raises:
          ClusterError: there is no such task.
        """
        process = self._process(task)
        if task in self._state.alive:
            process.send(signal_number)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Sees the tasks to their end.

        SIGINT, SIGTERM and SIGHUP end the tasks while this waits in the main thread: SIGTERM for them at
        the first, SIGKILL at the second. A signal that this process ignores (`nohup`) stays ignored.

        Args:
          timeout_s: how long at most; a training takes as long as it takes when `None`.

        Raises:
          ClusterError: the tasks have not been started.
          DeadlineExceeded: tasks still run; the message says which. They run on until the `with` block is left.
        """
        if not self._clusters:
            raise _not_started()
        until = None if timeout_s is None else self._clock() + timeout_s
        with self._signals():
            while (outcome := self._state.outcome) is None:
                if until is not None and self._clock() >= until:
                    names = ", ".join(sorted(map(str, self._state.alive))) or "a job that waits for its next start"
                    raise DeadlineExceeded(f"{names} did not end in {timeout_s:g} s.")
                self._turn(until)
        return outcome

    def close(self) -> None:
        """Ends what still runs and frees everything. Idempotent."""
        try:
            self._apply(Left())
            while self._state.outcome is None:
                self._turn(None)
        finally:
            # Also where the wait above was broken off by a second Ctrl-C: nothing stays behind.
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
            # What has broken may be the callbacks themselves, such as a closed terminal.
            self._on_line = self._on_note = None
        self.close()

    def _start(self) -> None:
        self._selector = self._owned.enter_context(selectors.DefaultSelector())
        self._clusters = {cluster.task: cluster for cluster in self._plan()}
        compiled = self._keep_what_is_compiled() if self._restarts.most else None
        guard = Reaper(stop_s=self._grace.stop_s, directory=compiled)
        self._owned.callback(guard.close)
        self._guard = guard
        for task in self._clusters:
            self._start_task(task)
            self._state = Supervision(
                alive=frozenset(self._processes), grace=self._grace, restarts=self._restarts, group=self._group()
            )

    def _keep_what_is_compiled(self) -> Path | None:
        """Has the tasks share what JAX compiles; returns the directory, which goes in the end, however that comes."""
        if _COMPILED in self._environ:
            return None
        try:
            directory = Path(tempfile.mkdtemp(prefix="trainband-compiled-"))
        except OSError as exc:
            self._note(f"a task that is started again will compile its programs again: {exc}")
            return None
        self._owned.callback(shutil.rmtree, directory, ignore_errors=True)
        self._environ = compiled_environment(self._environ, directory)
        return directory

    def _plan(self) -> list[Cluster]:
        """The tasks to start, in this order."""
        sizes = {job: size for job, size in self._sizes.items() if size}
        before, self._reserved = self._reserved, ReservedPorts(sum(sizes.values()), self._host)
        if before is not None:
            before.close()  # not earlier, so that no task gets the port that another has just had
        addresses = iter(self._reserved.addresses)
        spec = ClusterSpec({job: [next(addresses) for _ in range(size)] for job, size in sizes.items()})
        return [Cluster(spec=spec, task=task) for task in spec.ps + spec.workers + spec.evaluators]

    def _trainers(self) -> int | None:
        """See `task_environment`."""
        return len(self.spec.workers) if len(self._clusters) > 1 else None

    def _group(self) -> WorkerGroup | None:
        """The tasks that are started again together."""
        tasks = frozenset(task for task in self._clusters if task.trains)
        together = len(tasks) > 1 and not self.spec.ps
        return WorkerGroup(tasks=tasks, min_workers=self._min_workers) if together else None

    def _start_group(self, tasks: Sequence[Task]) -> None:
        """Starts all that train again, these and no others, in a cluster planned anew.

        An evaluator goes on with the addresses of before: it reads checkpoints and calls nobody.
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
            self._apply(Began(task))

    def _start_task(self, task: Task) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environ = task_environment(
            self._environ,
            cluster=self._clusters[task],
            trainers=self._trainers(),
            cores=cores,
            threads=self._threads,
        )
        process = TaskProcess(task, self._command, environ=environ, guard=self._guard, keep_lines=self._keep_lines)
        self._owned.callback(process.close)
        self._processes[task] = process
        process.register(self._selector)

    def _process(self, task: Task) -> TaskProcess:
        if task not in self._processes:
            raise ClusterError(f"this LocalCluster has no task {task}, only {', '.join(map(str, self._processes))}.")
        return self._processes[task]

    def _turn(self, until: float | None) -> None:
        """Waits for the next thing to happen, or for a deadline, and sees to it."""
        for key, _ in self._selector.select(self._timeout_s(until)):
            if key.data is None:
                for number in os.read(key.fd, 64):
                    self._apply(Interrupted(number))
                continue
            process, ended = key.data
            if ended:
                self._look(process)
            else:
                self._print(process, process.read(self._selector))
        for process in self._processes.values():
            if process.task in self._state.alive and not process.tells_its_end:
                self._look(process)
        self._apply(Tick())

    def _timeout_s(self, until: float | None) -> float | None:
        deadlines = [deadline for deadline in (until, self._state.next_s) if deadline is not None]
        waits = [max(0.0, deadline - self._clock()) for deadline in deadlines]
        if any(not self._processes[task].tells_its_end for task in self._state.alive):
            waits.append(_BETWEEN_LOOKS_S)
        return min(waits, default=None)

    def _look(self, process: TaskProcess) -> None:
        status = process.status()
        if status is not None:
            process.forget_end(self._selector)
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
                    self._processes[task].send(number)
                case Start(task):
                    self._processes[task].close()
                    self._start_task(task)
                    self._apply(Began(task))
                case StartGroup(tasks):
                    self._start_group(tasks)
                case Say(text):
                    self._note(text)

    def _note(self, text: str) -> None:
        if self._on_note is not None:
            self._on_note(text)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns signals to this process into events, by a pipe that wakes the selector."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python gives signals to the main thread alone
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def pass_on(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
            with contextlib.suppress(BlockingIOError):  # 65536 signals that nobody has read yet say enough
                os.write(writer, bytes([number]))

        # None: set by C code, which Python cannot put back, so we leave it.
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        taken = [number for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)]
        self._selector.register(reader, selectors.EVENT_READ, None)
        try:
            for number in taken:
                signal.signal(number, pass_on)
            yield
        finally:
            for number in taken:
                signal.signal(number, previous[number])
            self._selector.unregister(reader)
            os.close(reader)
            os.close(writer)
