"""Running a job from Python: on any platform, and on this machine from a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from trainband.cluster.resolvers.own_environment import own_environment
from trainband.errors import ClusterError
from trainband.launch.backend import Backend
from trainband.launch.backends.choice import choose
from trainband.launch.events import Outcome
from trainband.launch.job_handle import JobHandle, show_on_stdout
from trainband.launch.options import Restarts
from trainband.launch.request import JobRequest, Program


def run(
    program: str | Program,
    *,
    ps: int = 1,
    workers: int = 2,
    on: str | Backend = "local",
    chief: bool = False,
    evaluator: bool = False,
    restarts: int = 0,
    min_workers: int | None = None,
    threads: int | None = None,
    tls: bool = False,
    environ: Mapping[str, str] | None = None,
    show: Callable[[str], None] | None = show_on_stdout,
    options: Mapping[str, object] | None = None,
) -> JobHandle:
    """Starts a job and returns at once.

    ::

        job = trainband.launch.run("train.py --steps 1000", ps=2, workers=8, on="slurm", options={"partition": "gpu"})
        job.wait()

    Args:
      program: a script and its arguments, as a string or a sequence; `-m` and a module; or a function without
        arguments, which is sent to the tasks by cloudpickle.
      ps, workers: how many.
      on: the platform: a name, or a backend such as `trainband.launch.backends.ssh.Ssh(hosts="a,b")`.
      chief, evaluator: whether to run these beside the workers.
      restarts: how often a failed task is restarted.
      min_workers: without ps, the smallest number of workers that continue; all when `None`.
      threads: the size of each task's XLA thread pool; the workers of a machine share its cores when `None`.
      tls: whether tasks encrypt their traffic, with certificates made for this job.
      environ: the environment; this process's when `None`.
      show: called with each line; `None` shows nothing.
      options: of the platform, if `on` is its name.

    Raises:
      YourError: the job cannot be started there.
      ClusterError: the numbers, the platform or an option is invalid.
    """
    if isinstance(program, str):
        program = shlex.split(program)
    if not isinstance(on, str) and options:
        raise ClusterError("options are for a platform given by name; set the fields of the backend instead.")
    request = JobRequest(
        program=program,
        environment=own_environment() if environ is None else environ,
        ps=ps,
        workers=workers,
        chief=chief,
        evaluator=evaluator,
        restarts=Restarts(limit=restarts),
        min_workers=min_workers,
        threads=threads,
        tls=tls,
    )
    backend = choose(on, options) if isinstance(on, str) else on
    return JobHandle(backend, request, show=show)


def local(*, ps: int = 1, workers: int = 2, **options: Any) -> LocalJobs:
    """Returns `LocalJobs`, for a notebook. The options are those of `run`."""
    return LocalJobs({"ps": ps, "workers": workers, **options})


class LocalJobs:
    """Runs functions of a notebook as jobs on this machine.

    ::

        with trainband.launch.local(ps=1, workers=2) as job:
            job.run(train)  # a function of a cell; its output is below the cell

    Leaving the block ends everything that still runs.

    Args:
      options: of `run`, for each job.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._jobs: list[JobHandle] = []

    def start(self, program: str | Program) -> JobHandle:
        """Starts a function or script in all tasks and returns at once."""
        job = run(program, on="local", **self._options)
        self._jobs.append(job)
        return job

    def run(self, program: str | Program) -> Outcome:
        """Runs a function or script to completion in all tasks.

        Raises:
          JobFailed: a task has failed; the message has its last lines.
        """
        return self.start(program).wait()

    def __enter__(self) -> LocalJobs:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            job.stop()
