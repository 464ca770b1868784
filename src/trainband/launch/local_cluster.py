"""All the tasks of a cluster as processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from trainband.cluster.task import Task
from trainband.errors import ClusterError
from trainband.launch.backend import Watcher, drop
from trainband.launch.machines.this_machine import ThisMachine
from trainband.launch.options import Grace, Restarts
from trainband.launch.process import TaskProcess
from trainband.launch.request import JobRequest, Program
from trainband.launch.supervised_cluster import SupervisedCluster

_GRACE = Grace()
_RESTARTS = Restarts()


class LocalCluster(SupervisedCluster):
    """Starts a cluster's tasks as processes of this machine and supervises them until all have exited.

    ::

        with LocalCluster(["train.py", "--steps=100"], environ=os.environ, ps=1, workers=2, on_line=show) as cluster:
            outcome = cluster.wait()
        sys.exit(outcome.exit_code)

    Each task gets its name from `TF_CONFIG`. The tasks share a secret made for this job, unless the environment sets
    credentials (see `trainband.cluster.resolve_credentials`). Leaving the `with` block ends every task that still runs
    and every process that the tasks have started, except those that moved to their own process group. If this process
    is killed with SIGKILL, the reaper does the same. The tasks' output is read only within `wait`, so a task that
    prints a lot pauses between two calls.

    Args:
      command: what each task runs with this Python: a script, or `-m` and a module, and its arguments. Or a function
        without arguments, such as one of a notebook: it is sent to the tasks by cloudpickle, with what it uses, and
        its result is dropped.
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
      restarts: how often a failed task is restarted. It then reuses JAX's compilation cache, see
        `compiled_environment`. Without ps, several workers form a worker group, which fails if any task does: all of
        them are restarted, at new addresses.
      tls: whether their traffic is encrypted, with certificates made for this job.
      min_workers: the smallest number of workers with which a worker group continues. A worker that fails more often
        than `restarts` allows is left out, and the group restarts without it. When `None`, all are needed. A chief is
        never left out.
      clock: monotonic seconds.

    Raises:
      YourError: a function is given, and cloudpickle is not installed; or certificates are requested, and cryptography
        is not.
      ClusterError: a number is negative, no task would train, `min_workers` is not from 1 to `workers` or there are
        ps, the host is not an address of this machine, or the function cannot be sent.
    """

    def __init__(
        self,
        command: Program,
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
        if keep_lines < 0:
            raise ClusterError(f"LocalCluster.keep_lines must be 0 or more, got {keep_lines}.")
        request = JobRequest(
            program=command,
            ps=ps,
            workers=workers,
            chief=chief,
            evaluator=evaluator,
            restarts=restarts,
            min_workers=min_workers,
            threads=threads,
            tls=tls,
            environment=environ,
        )
        watcher = Watcher(line=on_line or drop, report=on_note or drop, keep_lines=keep_lines)
        super().__init__(request, ThisMachine(host, threads), watcher, grace=grace, clock=clock)

    def process_id(self, task: Task) -> int:
        """The id of a task's process and of the process group that it leads.

        Raises:
          ClusterError: there is no such task.
        """
        running = self._task(task)
        assert isinstance(running, TaskProcess)
        return running.pid
