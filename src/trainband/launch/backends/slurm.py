"""The backend `slurm`: tasks on nodes allocated by Slurm."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from trainband.errors import ClusterError
from trainband.launch.backend import Run, Watcher
from trainband.launch.function import pickled
from trainband.launch.machines.slurm import SlurmMachines
from trainband.launch.options import Grace
from trainband.launch.request import JobRequest
from trainband.launch.slurm.allocation import allocation_of
from trainband.launch.slurm.commands import SlurmCommands
from trainband.launch.slurm.script import batch_script, inner_command
from trainband.launch.slurm.submitted_job import SubmittedJob
from trainband.launch.supervised_cluster import SupervisedCluster

_SIGNAL = re.compile(r"(?P<name>USR1|USR2|HUP|URG|WINCH)@(?P<seconds>\d{1,5})")
_FUNCTION = "function.pickle"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm:
    """Nodes allocated by Slurm.

    Within an allocation (a batch script, or a shell of salloc), the tasks are started on its nodes, and only `python`
    is used. Elsewhere a job is submitted with these options and followed to its end. It runs in this process's
    directory, which its nodes must share with this machine.

    Attributes:
      partition, account, qos, time: as for sbatch; Slurm's defaults when empty.
      nodes: how many nodes the job, or its training tasks, get; Slurm chooses when `None`.
      cpus_per_task: the CPUs of each task, or of each training task.
      gres: of each node where tasks train, such as `gpu:1`.
      memory: of each node, such as `16G`.
      ps_partition, ps_cpus: the partition and the CPUs of each ps and the evaluator. If one is given, they get their
        own nodes (a heterogeneous job).
      name: of the job; the program's when empty.
      output: a file for the tasks' output, which is kept; no file is left behind without it.
      requeue: whether the job is requeued when it runs out of time or is preempted.
      signal: the signal by which Slurm announces this, and how many seconds before: `USR1@60`. The tasks save and
        exit.
      extra: further options for sbatch, as in a shell; they apply to all nodes.
      python: the Python on the nodes: this one's path when empty.

    Source: https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/heterogeneous_jobs.html.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    nodes: int | None = None
    cpus_per_task: int | None = None
    gres: str = ""
    memory: str = ""
    ps_partition: str = ""
    ps_cpus: int | None = None
    name: str = ""
    output: str = ""
    requeue: bool = True
    signal: str = "USR1@60"
    extra: str = ""
    python: str = ""

    def __post_init__(self) -> None:
        for name in ("nodes", "cpus_per_task", "ps_cpus"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClusterError(f"slurm: {name} must be 1 or more, got {value}.")
        if not _SIGNAL.fullmatch(self.signal):
            raise ClusterError(
                f"slurm: signal = {self.signal!r} is invalid; write USR1@60 for SIGUSR1 60 s before, or use "
                "USR2, HUP, URG or WINCH. TERM is not allowed because scancel sends it, and a cancelled job must "
                "not be requeued."
            )

    def prepare(self, request: JobRequest, watcher: Watcher) -> Run:
        python = self.python or sys.executable
        allocation = allocation_of(request.environment)
        if allocation is not None:
            allocation.place(request.sizes)  # refuses one that is too small before anything starts
            machines = SlurmMachines(
                allocation,
                python=python,
                directory=str(Path.cwd()),
                environ=request.environment,
                say=watcher.report,
                threads=request.threads,
            )
            return SupervisedCluster(request, machines, watcher)
        # Set if this process is a task of a step, whose job is not the new one.
        environ = {
            name: value
            for name, value in request.environment.items()
            if not name.startswith("SLURM") or name in ("SLURM_CONF", "SLURM_CLUSTERS")
        }
        commands = SlurmCommands(environ, "sbatch", "squeue", "scancel", "scontrol")
        function = pickled(request.program) if callable(request.program) else None

        def script(run: Path) -> str:
            program = [] if callable(request.program) else list(request.program)
            if function is not None:
                (run / _FUNCTION).write_bytes(function)
                program = ["-m", "trainband.launch.function_program", str(run / _FUNCTION)]
            name = self.signal.partition("@")[0]
            command = inner_command(request, program, python)
            return batch_script(self.groups(request), command, run=str(run), signal=name, requeue=self.requeue)

        return SubmittedJob(
            request,
            watcher,
            commands=commands,
            script=script,
            options=self.options(request),
            output=Path(self.output).absolute() if self.output else None,
            grace=Grace(),
        )

    def options(self, request: JobRequest) -> list[str]:
        """Returns the options of the whole job, for sbatch's command line."""
        name = self.name or _name(request)
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"--job-name={name}", f"--chdir={Path.cwd()}", "--export=ALL", requeue]

    def groups(self, request: JobRequest) -> list[list[str]]:
        """Returns the options of each group of nodes."""
        beside = request.ps + request.evaluator
        training = request.workers + request.chief
        common = self._options(account=self.account, qos=self.qos, time=self.time, mem=self.memory)
        common += [f"--signal=B:{self.signal}", *shlex.split(self.extra)]
        main = self._options(
            partition=self.partition, nodes=self.nodes, **{"cpus-per-task": self.cpus_per_task}, gres=self.gres
        )
        if not beside or not (self.ps_partition or self.ps_cpus):
            return [[f"--ntasks={beside + training}", *main, *common]]
        of_ps = self._options(partition=self.ps_partition or self.partition, **{"cpus-per-task": self.ps_cpus})
        return [[f"--ntasks={beside}", *of_ps, *common], [f"--ntasks={training}", *main, *common]]

    @staticmethod
    def _options(**options: object) -> list[str]:
        return [f"--{name}={value}" for name, value in options.items() if value not in (None, "")]


def _name(request: JobRequest) -> str:
    if callable(request.program):
        return getattr(request.program, "__name__", "trainband")
    words = [word for word in request.program if not word.startswith("-")]
    return Path(words[0]).name if words else "trainband"
