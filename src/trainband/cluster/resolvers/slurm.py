"""A Slurm job as a cluster: its nodes, in order, with a port for each task of a node."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError

PS = "TRAINBAND_PS"
"""How many of the identical tasks that a platform starts are ps: the first ones. None by default."""

_STEPS_OF_THEIR_OWN = 0xFFFFFFF0
"""From here on, step numbers are Slurm's own: for the batch script, the container or an interactive shell."""
_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below the ports that systems assign to connections."""


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the step in which `srun` started this process; `None` if it did not.

    The first `TRAINBAND_PS` tasks are ps, in the order of Slurm's ranks, and the others workers. In a step over
    several groups of a heterogeneous job (`srun --het-group=0,1`), the ranks of the first group come first. Each task
    listens at its node's name, on a port that all tasks derive from the numbers of the job and the step.

    A shell on a node of an allocation (`salloc`, ssh, `srun --pty`) has all or some of Slurm's variables, too. It is
    not a task of a cluster: only a step of several tasks is a cluster. A job submitted by a task of a step inherits the
    variables of that step. They contradict those of its own job and are ignored.

    Raises:
      ClusterError: this is such a step, and a variable is missing or not a number, or the nodes of the ranks are
        unknown.

    Source: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"; for half-set ones, jax-ml/jax#30073;
    their actual values, `tests/cluster/slurm.json`, recorded with Slurm 22.05.
    """
    if not in_step_of_several(environ):
        return None
    count = int(environ["SLURM_STEP_NUM_TASKS"])
    ps = _number(environ.get(PS, "0"), PS)
    if ps >= count:
        raise ClusterError(f"{PS} = {ps}, but srun has started {count} tasks: none would be left for a worker.")
    number = _number(_said(environ, "JOB_ID", "JOBID"), "SLURM_JOB_ID")
    _said(environ, "STEP_TASKS_PER_NODE")
    most = max(Counter(_by_rank(*_nodes(environ))).values())
    port = _FIRST_PORT + (number * 127 + int(environ["SLURM_STEP_ID"]) * most) % (_PORTS - most)
    jobs = {"ps": ps, "worker": count - ps} if ps else {"worker": count}
    spec, job, index = tasks(jobs, port, environ=environ)
    return Cluster(spec=ClusterSpec(spec, field="Slurm's {job}"), task=Task(job, index))


def in_step_of_several(environ: Mapping[str, str]) -> bool:
    """Whether this process is one of several tasks of one `srun`."""
    step, count = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_STEP_NUM_TASKS", "")
    if not step.isdigit() or int(step) >= _STEPS_OF_THEIR_OWN or not count.isdigit() or int(count) < 2:
        return False
    return not _is_left_over(environ)


def _is_left_over(environ: Mapping[str, str]) -> bool:
    """Whether the step belongs to another job, a task of which submitted this job."""
    listed = list(hosts(environ.get("SLURM_STEP_NODELIST", "")))
    of_job = set(hosts(environ.get("SLURM_JOB_NODELIST", "")))
    here, ranks = environ.get("SLURMD_NODENAME", ""), environ.get("SLURM_GTIDS", "")
    if listed and ((of_job and not of_job.issuperset(listed)) or (here and here not in listed)):
        return True
    tasks_here = dict(zip(listed, counts_of(environ.get("SLURM_STEP_TASKS_PER_NODE") or "0"), strict=False)).get(here)
    return bool(ranks and tasks_here) and tasks_here != len(ranks.split(","))


def _nodes(environ: Mapping[str, str]) -> tuple[list[str], list[int]]:
    """Returns the nodes of the step in the order of their ranks, and how many tasks each has.

    In a step over several groups of a heterogeneous job, Slurm lists the nodes by name, with the numbers of tasks in
    the same order; the ranks follow the groups.
    """
    listed = list(hosts(_said(environ, "STEP_NODELIST", "JOB_NODELIST")))
    numbers = list(counts_of(_said(environ, "STEP_TASKS_PER_NODE", "TASKS_PER_NODE")))
    groups = environ.get("SLURM_HET_SIZE", "0")
    grouped = [
        node
        for group in range(_number(groups, "SLURM_HET_SIZE"))
        for node in hosts(environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{group}", ""))
    ]
    if set(listed) <= set(grouped) and len(set(grouped)) == len(grouped):
        place = {node: i for i, node in enumerate(grouped)}
        pairs = sorted(zip(listed, numbers, strict=False), key=lambda pair: place[pair[0]])
        return [node for node, _ in pairs], [number for _, number in pairs]
    return listed, numbers


def _number(text: str, name: str) -> int:
    if not text.isdigit():
        raise ClusterError(f"{name} = {text!r} is not a number.")
    return int(text)


def tasks(
    jobs: Mapping[str, int] | None = None,
    port_base: int = 8888,
    tasks_per_node: Any = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[dict[str, list[str]], str, int]:
    """Returns the addresses by job, and this process's job and index in it.

    Args:
      jobs: how many tasks each job has, in order; all are workers by default.
      port_base: the port of a node's first task.
      tasks_per_node: a number, or a list of numbers by node; `SLURM_STEP_TASKS_PER_NODE` by default.
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      ClusterError: this process is not a Slurm task, or the jobs have more tasks than Slurm has started.

    Source: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
    """
    found = os.environ if environ is None else environ
    if tasks_per_node is None:
        by_rank = _by_rank(*_nodes(found), *_distribution(found))
        _check_ranks_here(found, by_rank)
    else:
        nodes = list(hosts(_said(found, "STEP_NODELIST", "JOB_NODELIST")))
        alike = isinstance(tasks_per_node, int)
        by_rank = _by_rank(nodes, [tasks_per_node] * len(nodes) if alike else [int(one) for one in tasks_per_node])
    names = _addresses_of_aliases(found)
    before: Counter[str] = Counter()
    addresses = []
    for node in by_rank:
        addresses.append(f"{names.get(node, node)}:{port_base + before[node]}")
        before[node] += 1
    wanted = dict(jobs or {"worker": len(addresses)})
    if sum(wanted.values()) > len(addresses):
        raise ClusterError(f"Slurm has started {len(addresses)} tasks, but the jobs {wanted} need more.")
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
        raise ClusterError(f"SLURM_PROCID is {rank}, but the jobs {wanted} have no task for it.")
    return cluster, *here


def hosts(nodes: str) -> Iterator[str]:
    """Yields the hosts of Slurm's shortened node list: `a[1-3,5],b` is `a1 a2 a3 a5 b`."""
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


def _distribution(environ: Mapping[str, str]) -> tuple[str, int]:
    """Returns how the ranks are distributed: `block`, `cyclic` or `plane`, and the size of a plane."""
    name = environ.get("SLURM_DISTRIBUTION", "").partition(":")[0].partition(",")[0]
    if name == "plane":
        return "plane", _number(_said(environ, "DIST_PLANESIZE"), "SLURM_DIST_PLANESIZE")
    return ("cyclic", 1) if name == "cyclic" else ("block", 1)


def _by_rank(nodes: Sequence[str], numbers: Sequence[int], distribution: str = "block", size: int = 1) -> list[str]:
    """Returns the node of each rank.

    Source: https://slurm.schedmd.com/srun.html, `--distribution`.
    """
    left = list(numbers[: len(nodes)])
    found: list[str] = []
    while any(left):
        for i, most in enumerate(left):
            dealt = most if distribution == "block" else min(size, most)
            found += [nodes[i]] * dealt
            left[i] -= dealt
    return found


def _check_ranks_here(environ: Mapping[str, str], by_rank: Sequence[str]) -> None:
    """Checks the ranks of this node against Slurm's."""
    here, theirs = environ.get("SLURMD_NODENAME", ""), environ.get("SLURM_GTIDS", "")
    ours = ",".join(str(rank) for rank, node in enumerate(by_rank) if node == here)
    if here and theirs and theirs != ours:
        raise ClusterError(
            f"node {here} runs the ranks {theirs} (SLURM_GTIDS), but the distribution "
            f"{environ.get('SLURM_DISTRIBUTION') or 'block'} has {ours or 'none'} there, so the addresses of the other "
            "tasks are unknown. Start them with srun --distribution=block."
        )


def _addresses_of_aliases(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the addresses of nodes whose names do not resolve, which Slurm lists for cloud nodes.

    `SLURM_NODE_ALIASES` is `name:address:hostname` of each, separated by commas, with IPv6 addresses in brackets.
    """
    found = re.findall(r"(?:^|,)([^:,]+):(\[[^\]]+\]|[^:,]+):[^,]*", environ.get("SLURM_NODE_ALIASES", ""))
    return dict(found)


def counts_of(text: str) -> Iterator[int]:
    """Yields the numbers of Slurm's shortened list by node: `2(x3),1` is 2 2 2 1.

    Raises:
      ClusterError: the list is malformed.
    """
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ClusterError(f"Slurm's tasks per node, {text!r}, are not a list of numbers such as 2(x3),1.")
        yield from [int(match[1])] * int(match[2] or 1)


def _said(environ: Mapping[str, str], *names: str) -> str:
    for name in names:
        if value := environ.get(f"SLURM_{name}"):
            return value
    raise ClusterError(f"SLURM_{names[0]} is not set: this process is not a task of a Slurm job; start it with srun.")
