"""Slurm's job as a cluster: its nodes, in order, with a port for each task of a node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError

PS = "TRAINBAND_PS"
"""How many of the tasks that a platform starts alike are ps: the first ones. None by default."""

_STEPS_OF_THEIR_OWN = 0xFFFFFFF0
"""From here on step numbers are Slurm's: of the batch script, of the container, of an interactive shell."""
_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below what systems give to connections."""


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster of the step that `srun` has started this process in; `None` where it was not started so.

    The first `TRAINBAND_PS` tasks are ps, in the order of Slurm's ranks, and the others workers. Each listens at its
    node's name, on a port that the numbers of the job and the step give: all tasks come to the same.

    A shell on a node of an allocation (`salloc`, ssh, `srun --pty`) has Slurm's variables too, all or some of them. It
    is no task of a cluster: only a step of several tasks is one.

    Raises:
      ClusterError: this is such a step, and a variable is missing or no number.

    Source: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; for half-set ones, jax-ml/jax#30073.
    """
    step = environ.get("SLURM_STEP_ID", "")
    count = environ.get("SLURM_STEP_NUM_TASKS", "")
    if not step.isdigit() or int(step) >= _STEPS_OF_THEIR_OWN or not count.isdigit() or int(count) < 2:
        return None
    ps = _number(environ.get(PS, "0"), PS)
    if ps >= int(count):
        raise ClusterError(f"{PS} = {ps}, and srun has started {count} tasks: none would be left for a worker.")
    number = _number(_said(environ, "JOB_ID", "JOBID"), "SLURM_JOB_ID")
    most = max(counts_of(_said(environ, "STEP_TASKS_PER_NODE")))
    port = _FIRST_PORT + (number * 127 + int(step) * most) % (_PORTS - most)
    jobs = {"ps": ps, "worker": int(count) - ps} if ps else {"worker": int(count)}
    spec, job, index = tasks(jobs, port, environ=environ)
    return Cluster(spec=ClusterSpec(spec, field="Slurm's {job}"), task=Task(job, index))


def _number(text: str, name: str) -> int:
    if not text.isdigit():
        raise ClusterError(f"{name} = {text!r} is no number.")
    return int(text)


def tasks(
    jobs: Mapping[str, int] | None = None,
    port_base: int = 8888,
    tasks_per_node: Any = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[dict[str, list[str]], str, int]:
    """The addresses by job, and this process's job and number in it.

    Args:
      jobs: how many tasks each job has, in order; all are workers by default.
      port_base: the port of a node's first task.
      tasks_per_node: a number, or a list of numbers by node; `SLURM_STEP_TASKS_PER_NODE` by default.
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      ClusterError: this process is no task of Slurm's, or the jobs have more tasks than Slurm has started.

    Source: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    found = os.environ if environ is None else environ
    nodes = list(hosts(_said(found, "STEP_NODELIST", "JOB_NODELIST")))
    if tasks_per_node is None:
        counts = list(counts_of(_said(found, "STEP_TASKS_PER_NODE", "TASKS_PER_NODE")))
    elif isinstance(tasks_per_node, int):
        counts = [tasks_per_node] * len(nodes)
    else:
        counts = [int(one) for one in tasks_per_node]
    addresses = [f"{node}:{port_base + i}" for node, count in zip(nodes, counts, strict=False) for i in range(count)]
    wanted = dict(jobs or {"worker": len(addresses)})
    if sum(wanted.values()) > len(addresses):
        raise ClusterError(f"Slurm has started {len(addresses)} tasks, and the jobs {wanted} need more.")
    rank = int(_said(found, "PROCID"))
    cluster: dict[str, list[str]] = {}
    here: tuple[str, int] | None = None
    at = 0
    for job, count in wanted.items():
        cluster[job] = addresses[at : at + count]
        if at <= rank < at + count:
            here = (job, rank - at)
        at += count
    if here is None:
        raise ClusterError(f"SLURM_PROCID is {rank}, and the jobs {wanted} have no task for it.")
    return cluster, *here


def hosts(nodes: str) -> Iterator[str]:
    """The hosts of a node list as Slurm shortens it: `a[1-3,5],b` is `a1 a2 a3 a5 b`."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            yield part
            continue
        before, numbers, after = match.groups()
        for one in numbers.split(","):
            first, dash, last = one.partition("-")
            for number in range(int(first), int(last if dash else first) + 1):
                yield from hosts(f"{before}{number:0{len(first)}d}{after}")


def counts_of(text: str) -> Iterator[int]:
    """`2(x3),1` is 2 2 2 1."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ClusterError(f"Slurm's tasks per node read {text!r}, which is no list of numbers such as 2(x3),1.")
        yield from [int(match[1])] * int(match[2] or 1)


def _said(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if value := environ.get(f"SLURM_{name}"):
            return value
    raise ClusterError(f"SLURM_{names[0]} is not set: this process is no task of a job of Slurm's; start it by srun.")
