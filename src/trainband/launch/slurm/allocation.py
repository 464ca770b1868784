"""Allocation: the nodes that Slurm allocated to this job, read from the variables of a batch script or shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainband.cluster.resolvers.slurm import counts_of, hosts, in_step_of_several
from trainband.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an allocation.

    Attributes:
      name: Slurm's name of it.
      cpus: how many are allocated on it.
      tasks: for how many tasks it was allocated; 0 if unknown.
      group: its group of a heterogeneous job; `None` in other jobs.
    """

    name: str
    cpus: int
    tasks: int = 0
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of a job, in Slurm's order."""

    job: str
    nodes: tuple[Node, ...]

    def place(self, sizes: Mapping[str, int]) -> dict[str, list[Node]]:
        """Returns the node of each task, by job and in the order of the tasks.

        In a heterogeneous job, the ps and the evaluator, which need no accelerator, are on the nodes of the first
        group, and the training tasks on those of the others. Otherwise all share all nodes.

        Tasks are spread over the nodes: none gets two while another has none. A node takes as many as it was allocated
        for or, if that is not enough, as many as it has CPUs.

        Raises:
          ClusterError: the allocation is too small.
        """
        beside = {job: size for job, size in sizes.items() if job in ("ps", "evaluator")}
        if not beside or not any(node.group for node in self.nodes):
            return self._placed(sizes, self.nodes, "")
        training = {job: size for job, size in sizes.items() if job not in beside}
        first = [node for node in self.nodes if node.group == 0]
        others = [node for node in self.nodes if node.group != 0]
        return {
            **self._placed(beside, first, " in its first group, which has the ps and the evaluator,"),
            **self._placed(training, others, " after its first group"),
        }

    def _placed(self, sizes: Mapping[str, int], nodes: Sequence[Node], where: str) -> dict[str, list[Node]]:
        wanted = sum(sizes.values())
        room = [max(1, node.tasks) for node in nodes]
        if sum(room) < wanted:
            room = [max(1, node.tasks, node.cpus) for node in nodes]
        if sum(room) < wanted:
            cpus = sum(node.cpus for node in nodes)
            raise ClusterError(
                f"Slurm job {self.job} has {_number(len(nodes), 'node')}{where} with {_number(cpus, 'CPU')}, and "
                f"{_number(wanted, 'task')} ({', '.join(f'{size} {job}' for job, size in sizes.items())}) need a CPU "
                "each; request more nodes, tasks or CPUs per task, or run fewer tasks."
            )
        numbers = _dealt(wanted, room)
        in_order = (node for node, number in zip(nodes, numbers, strict=True) for _ in range(number))
        return {job: [next(in_order) for _ in range(size)] for job, size in sizes.items()}


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation whose batch script or shell this process is in; `None` without one, or if this process is
    one of several tasks of a step.

    Raises:
      ClusterError: the variables contradict each other.

    Source: https://slurm.schedmd.com/sbatch.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job or not environ.get("SLURM_JOB_NODELIST") or in_step_of_several(environ):
        return None
    size = environ.get("SLURM_HET_SIZE", "")
    if not size:
        return Allocation(job, tuple(_nodes(environ, "", None)))
    if not size.isdigit():
        raise ClusterError(f"SLURM_HET_SIZE = {size!r} is not a number.")
    return Allocation(job, tuple(node for i in range(int(size)) for node in _nodes(environ, f"_HET_GROUP_{i}", i)))


def _nodes(environ: Mapping[str, str], ending: str, group: int | None) -> Iterator[Node]:
    listed, cpus = (f"SLURM_{name}{ending}" for name in ("JOB_NODELIST", "JOB_CPUS_PER_NODE"))
    names = list(hosts(environ.get(listed, "")))
    found = list(counts_of(environ.get(cpus) or "0"))
    # A shell of `srun --pty` has only its own node's CPUs.
    numbers = found if len(found) == len(names) else [max(found, default=0)] * len(names)
    tasks = list(counts_of(environ.get(f"SLURM_TASKS_PER_NODE{ending}") or "0"))
    if len(tasks) != len(names) or not environ.get(f"SLURM_NTASKS{ending}"):
        tasks = [0] * len(names)
    if not names:
        raise ClusterError(f"{listed} is not set: this shell has only some of the Slurm job's variables.")
    for name, number, task in zip(names, numbers, tasks, strict=True):
        yield Node(name, max(1, number), task, group)


def _dealt(wanted: int, room: Sequence[int]) -> list[int]:
    """Returns how many each gets when `wanted` are dealt one by one to those that have room."""
    dealt = [0] * len(room)
    while sum(dealt) < wanted:
        for i, most in enumerate(room):
            if dealt[i] < most and sum(dealt) < wanted:
                dealt[i] += 1
    return dealt


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
