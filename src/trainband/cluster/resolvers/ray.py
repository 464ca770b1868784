"""Actors of Ray as a cluster, for a program that starts them itself. `trainband run --on ray` does without."""

from __future__ import annotations

from collections.abc import Sequence

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.errors import ClusterError


def clusters(addresses: Sequence[str], *, ps: int = 0) -> list[Cluster]:
    """The cluster as each of some actors sees it, in their order: the first are ps, and the others workers.

    Ray tells its actors neither how many they are nor where the others run, so the program that has started them asks
    each for its address, and hands each its cluster.

    Args:
      addresses: of each actor, `host:port`: `ray.util.get_node_ip_address()` and a port that is free there.
      ps: how many of them are ps.

    Raises:
      ClusterError: `ps` is negative, or no actor would be left for a worker; or an address is none, or given twice.
    """
    if not 0 <= ps < len(addresses):
        raise ClusterError(f"ps must be from 0 to {len(addresses) - 1} for {len(addresses)} actors, got {ps}.")
    jobs = {"ps": list(addresses[:ps]), "worker": list(addresses[ps:])}
    spec = ClusterSpec({job: found for job, found in jobs.items() if found}, field="the actors' {job}")
    return [Cluster(spec=spec, task=task) for task in (*spec.ps, *spec.workers)]
