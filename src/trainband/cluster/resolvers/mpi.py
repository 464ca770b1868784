"""The processes started by Open MPI's `mpirun`, or another launcher that speaks PMIx, as a cluster.

Their ranks are in the environment, but their hosts are not: each process is told how many others share its machine, but
never where the rest are. On one machine that is enough. Across machines the hosts come from Slurm, if `mpirun` runs
within an allocation, or from `TRAINBAND_HOSTS`.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Mapping

from trainband.cluster.cluster import Cluster
from trainband.cluster.resolvers import slurm
from trainband.cluster.resolvers.ranks import PORT, cluster_of, number, port_of
from trainband.errors import ClusterError

HOSTS = "TRAINBAND_HOSTS"
"""The hosts in the order of their ranks, as for `mpirun --host`: `a:2,b:2` for two ranks on each."""

_RANK, _SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_LOCAL_RANK, _LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
_PMIX_RANK, _NAMESPACE, _HOST_NAME = "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_HOSTNAME"
_FIRST_PORT, _PORTS = 10_000, 20_000
"""Below the ports that systems assign to connections."""


def resolve(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of the processes that `mpirun` started; `None` if it did not start this one.

    The first `TRAINBAND_PS` ranks are ps, and the others workers. Rank r listens on port p + r, where p is
    `TRAINBAND_PORT` or is derived from PMIx's name of the job, so that all ranks use the same p.

    A shell started by `mpirun -n 1`, or one where modules set `OMPI_MCA_` variables, is not a task of a cluster, nor
    is a process of `srun --mpi=pmix`: Slurm describes that, with the hosts.

    Raises:
      ClusterError: a variable is missing or not a number, or the hosts are unknown or not those on which the ranks
        run.

    Source: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; recorded with Open MPI 5.0.11.
    """
    namespace = environ.get(_NAMESPACE, "")
    if namespace.startswith("slurm."):
        return None
    if _RANK not in environ and _SIZE not in environ:
        return _of_pmix(environ, namespace)
    for name, other in ((_RANK, _SIZE), (_SIZE, _RANK)):
        if not environ.get(name):
            raise ClusterError(
                f"{other} is set but {name} is not; mpirun sets both. Start this process with mpirun, or unset {other}."
            )
    rank, size = number(environ[_RANK], _RANK), number(environ[_SIZE], _SIZE)
    if size < 2:
        return None
    local = number(environ.get(_LOCAL_SIZE) or "0", _LOCAL_SIZE)
    hosts = _hosts(environ, size, local)
    _check_host(environ, hosts, rank)
    return _cluster(environ, namespace, hosts, rank, "mpirun")


def _of_pmix(environ: Mapping[str, str], namespace: str) -> Cluster | None:
    """Handles PMIx alone, which gives a rank but not the number of ranks."""
    if not (environ.get(_PMIX_RANK) and namespace):
        return None
    if HOSTS not in environ:
        raise ClusterError(
            f"{_PMIX_RANK} = {environ[_PMIX_RANK]} says that this process is one of several, but the environment "
            f"gives neither their number nor their hosts. Set {HOSTS}=host:ranks,host:ranks for all of them; or, if "
            f"this process runs alone, unset {_PMIX_RANK}."
        )
    hosts = _read_hosts(environ[HOSTS])
    rank = number(environ[_PMIX_RANK], _PMIX_RANK)
    _check_host(environ, hosts, rank)
    return _cluster(environ, namespace, hosts, rank, "PMIx") if len(hosts) > 1 else None


def _cluster(environ: Mapping[str, str], namespace: str, hosts: list[str], rank: int, platform: str) -> Cluster:
    if not (namespace or environ.get(PORT)):
        raise ClusterError(
            f"{_NAMESPACE} is not set, so the ranks cannot agree on ports; set {PORT} to the first of {len(hosts)} "
            "free ports, the same for all ranks."
        )
    default = _FIRST_PORT + zlib.crc32(namespace.encode()) % (_PORTS - len(hosts))
    first = port_of(environ, default)
    if first + len(hosts) > 65536:
        raise ClusterError(f"{PORT} = {first} leaves no ports for {len(hosts)} ranks, which use consecutive ports.")
    return cluster_of([f"{host}:{first + place}" for place, host in enumerate(hosts)], rank, environ, platform)


def _hosts(environ: Mapping[str, str], size: int, local: int) -> list[str]:
    """Returns the host of each rank."""
    if environ.get(HOSTS):
        hosts = _read_hosts(environ[HOSTS])
        if len(hosts) != size:
            raise ClusterError(
                f"{HOSTS} = {environ[HOSTS]!r} has places for {len(hosts)} ranks, but mpirun has started {size}; write "
                "host:ranks for each host, in the order in which mpirun fills them."
            )
        return hosts
    if local == size:
        return ["127.0.0.1"] * size
    if nodes := environ.get("SLURM_JOB_NODELIST"):
        counts = slurm.counts_of(environ.get("SLURM_TASKS_PER_NODE", "1"))
        hosts = [node for node, count in zip(slurm.hosts(nodes), counts, strict=False) for _ in range(count)]
        if len(hosts) >= size:
            return hosts[:size]
    raise ClusterError(
        f"mpirun has started {size} ranks, but not all of them are on this machine, and the environment does not "
        f"say where the others are. List the hosts as mpirun fills them: mpirun -x {HOSTS}=a:2,b:2 --host "
        "a:2,b:2 --map-by slot ..."
    )


def _read_hosts(text: str) -> list[str]:
    hosts: list[str] = []
    for part in text.split(","):
        host, colon, count = part.strip().rpartition(":")
        if not colon or part.strip().endswith("]"):
            host, count = part.strip(), "1"
        if not host:
            raise ClusterError(f"{HOSTS} = {text!r}: write host:ranks,host:ranks, such as a:2,b:2.")
        hosts += [host] * number(count, f"{HOSTS}: the ranks of {host}")
    return hosts


def _check_host(environ: Mapping[str, str], hosts: list[str], rank: int) -> None:
    """Checks that this rank runs where the list says, because all others trust the list.

    It ignores the number of ranks on this machine: if machines have different numbers, Open MPI 5.0.11 reports that of
    the last machine to all ranks. Its ranks within a machine are right, in the order of the ranks.

    Raises:
      ClusterError: it runs elsewhere.
    """
    if rank >= len(hosts):
        raise ClusterError(f"{HOSTS} has places for {len(hosts)} ranks, and this is rank {rank}.")
    if len(set(hosts)) == 1:
        return
    expected, name, local = hosts[rank], environ.get(_HOST_NAME, ""), environ.get(_LOCAL_RANK, "")
    place = hosts[:rank].count(expected)
    mapping = (
        f"Start mpirun with --map-by slot and no --oversubscribe, and in {HOSTS} list the hosts in the order of their "
        "ranks, each with its number of ranks"
    )
    if local and number(local, _LOCAL_RANK) != place:
        raise ClusterError(
            f"rank {rank} should be number {place} of those on {expected}, counted from 0, but is number {local} on "
            f"its machine according to mpirun. {mapping}."
        )
    if name and not _is_address(expected) and _short(name) != _short(expected):
        raise ClusterError(f"rank {rank} should run on {expected}, but runs on {name}. {mapping}.")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    return True


def _short(host: str) -> str:
    return host if _is_address(host) else host.partition(".")[0].lower()
