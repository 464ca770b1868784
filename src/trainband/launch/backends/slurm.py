"""The backend `slurm`: tasks on the nodes that Slurm gives."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from trainband.errors import ClusterError
from trainband.launch.backends.base import Run, Watcher
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
    """Slurm's nodes.

    Within an allocation (a batch script, or a shell of salloc), the tasks are started on its nodes, and only `python`
    is looked at. Elsewhere a job is submitted, with these options, and followed to its end. It runs in this process's
    directory, which its nodes share with this machine.

    Attributes:
      partition, account, qos, time: as for sbatch; Slurm's defaults when empty.
      nodes: how many nodes the job has, or those of the tasks that train; Slurm chooses when `None`.
      cpus_per_task: the CPUs of each task, or of each that trains.
      gres: of each node where tasks train, such as `gpu:1`.
      memory: of each node, such as `16G`.
      ps_partition, ps_cpus: for the ps and the evaluator, which get nodes of their own if one of these is given
        (a heterogeneous job): its partition, and the CPUs of each of them.
      name: of the job; that of the program when empty.
      output: a file for what the tasks print; kept, while there is else none left behind.
      requeue: whether the job goes back into the queue when its time is over or another job gets its nodes.
      signal: the signal by which Slurm announces that, and how many seconds before: `USR1@60`. The tasks save and
        leave.
      extra: further options for sbatch, as in a shell; they hold for all nodes.
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
                f"slurm: signal = {self.signal!r} cannot be read: write USR1@60 for SIGUSR1 60 s before, or another of "
                "USR2, HUP, URG and WINCH. TERM is not one of them: it is what scancel sends, after which the job must "
                "not come back."
            )

    def prepare(self, request: JobRequest, watcher: Watcher) -> Run:
        """See `Backend.prepare`."""
        python = self.python or sys.executable
        allocation = allocation_of(request.environment)
        if allocation is not None:
            allocation.place(request.sizes)  # now, so that one that is too small is refused before anything starts
            machines = SlurmMachines(
                allocation,
                python=python,
                directory=str(Path.cwd()),
                environ=request.environment,
                say=watcher.note,
                threads=request.threads,
            )
            return SupervisedCluster(request, machines, watcher)
        # Of a step that this process is a task of, if any: its job is not the new one.
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
        """Those of the job as a whole, for sbatch's command line."""
        name = self.name or _name(request)
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"--job-name={name}", f"--chdir={Path.cwd()}", "--export=ALL", requeue]

    def groups(self, request: JobRequest) -> list[list[str]]:
        """The options of each group of nodes."""
        beside = request.ps + request.evaluator
        training = request.workers + request.chief
        common = self._given(account=self.account, qos=self.qos, time=self.time, mem=self.memory)
        common += [f"--signal=B:{self.signal}", *shlex.split(self.extra)]
        main = self._given(
            partition=self.partition, nodes=self.nodes, **{"cpus-per-task": self.cpus_per_task}, gres=self.gres
        )
        if not beside or not (self.ps_partition or self.ps_cpus):
            return [[f"--ntasks={beside + training}", *main, *common]]
        of_ps = self._given(partition=self.ps_partition or self.partition, **{"cpus-per-task": self.ps_cpus})
        return [[f"--ntasks={beside}", *of_ps, *common], [f"--ntasks={training}", *main, *common]]

    @staticmethod
    def _given(**options: object) -> list[str]:
        return [f"--{name}={value}" for name, value in options.items() if value not in (None, "")]


def _name(request: JobRequest) -> str:
    if callable(request.program):
        return getattr(request.program, "__name__", "trainband")
    words = [word for word in request.program if not word.startswith("-")]
    return Path(words[0]).name if words else "trainband"
