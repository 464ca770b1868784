"""SlurmMachines: the tasks of a job on the nodes of an allocation, each a step started by srun."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from typing import Final

from trainband.cluster.task import Task
from trainband.errors import ClusterError, YourError
from trainband.launch.machines.remote import Host, RemoteMachines
from trainband.launch.slurm.allocation import Allocation, Node
from trainband.launch.slurm.commands import SlurmCommands
from trainband.runtime.overrides import override
from trainband.runtime.waiting import Say

_OF_OTHER_STEPS: Final = re.compile(
    r"(SLURM_(NTASKS|NPROCS|DISTRIBUTION|ARBITRARY|CPUS_PER_TASK|CPU_BIND|HINT|EXCLUSIVE|EXACT|MULTI_PROG|STEP_|THREADS_)"
    r"|SRUN_)\w*"
)
"""Variables of the batch script, or of the shell's step, that srun reads as options."""


class SlurmMachines(RemoteMachines):
    """The nodes of a Slurm job, as `Machines`.

    Each task is a step of one process beside the others (`srun --overlap`), which may use all the CPUs that the job has
    on its node. A task listens at the address by which Slurm reaches its node, because the node's name may not resolve.

    Args:
      environ, say, threads: as for `RemoteMachines`.

    Raises:
      YourError: srun or scontrol is missing, or scontrol does not know a node.
    """

    def __init__(
        self,
        allocation: Allocation,
        *,
        python: str,
        directory: str,
        environ: Mapping[str, str],
        say: Say,
        threads: int | None,
    ) -> None:
        commands = SlurmCommands(environ, "srun", "scontrol")
        super().__init__(srun_environment(environ), say, threads=threads)
        self._allocation = allocation
        bind = "affinity" in commands.run("scontrol", "show", "config").partition("TaskPlugin ")[2].partition("\n")[0]
        self._hosts = {
            node: Host(
                name=_address(commands, node.name),
                command=(shutil.which("srun", path=environ.get("PATH")) or "srun", *srun_options(node, bind=bind)),
                by_shell=False,
                python=python,
                directory=directory,
            )
            for node in allocation.nodes
        }

    @override
    def place(self, sizes: Mapping[str, int], lost: Collection[Host]) -> dict[Task, Host]:
        left = tuple(node for node in self._allocation.nodes if self._hosts[node] not in lost)
        if not left:
            raise ClusterError(f"no node of Slurm job {self._allocation.job} answers; check that they are up.")
        placed = Allocation(self._allocation.job, left).place(sizes)
        return {Task(job, i): self._hosts[node] for job, nodes in placed.items() for i, node in enumerate(nodes)}


def srun_options(node: Node, *, bind: bool) -> list[str]:
    """Returns the options with which srun starts one process on a node beside others.

    `--cpus-per-task` is left out because it implies `--exact`, which gives overlapping steps the same CPUs. With
    `--cpu-bind=none` a task may use all CPUs that the job has there.

    Args:
      bind: whether Slurm would bind tasks to CPUs. If it cannot, srun complains about any `--cpu-bind`.
    """
    group = [] if node.group is None else [f"--het-group={node.group}"]
    place = [f"--nodelist={node.name}", "--nodes=1", "--ntasks=1"]
    binding = ["--cpu-bind=none"] if bind else []
    return [*group, *place, *binding, "--overlap", "--export=ALL", "--quiet"]


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment for srun without the variables of a script or step that srun would read as options.

    Source: https://slurm.schedmd.com/srun.html, "INPUT ENVIRONMENT VARIABLES".
    """
    return {name: value for name, value in environ.items() if not _OF_OTHER_STEPS.fullmatch(name)}


def _address(commands: SlurmCommands, node: str) -> str:
    told = commands.run("scontrol", "--oneliner", "show", "node", node)
    match = re.search(r"\bNodeAddr=(\S+)", told)
    if match is None:
        raise YourError(f"scontrol shows no address for node {node}: {told.strip()}")
    return match[1]
