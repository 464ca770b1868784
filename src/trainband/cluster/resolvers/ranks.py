"""Tasks that a platform starts identically and that differ only in rank: the first are ps, the others workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers.slurm import PS
from trainband.cluster.spec import ClusterSpec
from trainband.cluster.task import Task
from trainband.errors import ClusterError

PORT = "TRAINBAND_PORT"
"""The port on which tasks listen or, if several may share a machine, that of the first one."""
DEFAULT_PORT = 2222


def cluster_of(addresses: Sequence[str], rank: int, environ: Mapping[str, str], platform: str) -> Cluster:
    """Returns the cluster of tasks that are told apart by their rank.

    Args:
      addresses: of all tasks, by rank.
      rank: of this one.
      environ: its `TRAINBAND_PS` is the number of ps.
      platform: the name of what started them, for messages.

    Raises:
      ClusterError: no task would be left for a worker, or there is no such rank.
    """
    ps = number(environ.get(PS, "0") or "0", PS)
    if ps >= len(addresses):
        raise ClusterError(f"{PS} = {ps}, but {platform} has {len(addresses)} tasks: none would be left for a worker.")
    if rank >= len(addresses):
        raise ClusterError(f"{platform} gives this process the rank {rank}, but has only {len(addresses)} tasks.")
    jobs = {"ps": list(addresses[:ps]), "worker": list(addresses[ps:])}
    task = Task("ps", rank) if rank < ps else Task("worker", rank - ps)
    spec = ClusterSpec({job: hosts for job, hosts in jobs.items() if hosts}, field=f"{platform}'s {{job}}")
    return Cluster(spec=spec, task=task)


def number(text: str, name: str) -> int:
    """Reads a non-negative number from a variable.

    Raises:
      ClusterError: it is not one; the message names the variable.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ClusterError(f"{name} = {text!r} is not a number.")
    return int(text)


def port_of(environ: Mapping[str, str], default: int = DEFAULT_PORT) -> int:
    """Returns the port that the user chose, or the default.

    Raises:
      ClusterError: it is not a port.
    """
    port = number(environ.get(PORT) or str(default), PORT)
    if not 1 <= port <= 65535:
        raise ClusterError(f"{PORT} = {port} is not a port; write one from 1 to 65535.")
    return port
