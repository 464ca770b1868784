"""Ray actors as a cluster, for a program that starts them itself. `trainband run --on ray` does not need this."""

from __future__ import annotations

from collections.abc import Sequence

from trainband.cluster.cluster import Cluster
from trainband.cluster.spec import ClusterSpec
from trainband.errors import ClusterError


def clusters(addresses: Sequence[str], *, ps: int = 0) -> list[Cluster]:
    """Returns each actor's view of the cluster, in their order: the first are ps, and the others workers.

    Ray tells its actors neither their number nor where the others run, so the program that started them asks each for
    its address and passes each its cluster.

    Args:
      addresses: of each actor, `host:port`: `ray.util.get_node_ip_address()` and a free port there.
      ps: how many of them are ps.

    Raises:
      ClusterError: `ps` is negative, no actor would be left for a worker, or an address is invalid or given twice.
    """
    if not 0 <= ps < len(addresses):
        raise ClusterError(f"ps must be from 0 to {len(addresses) - 1} for {len(addresses)} actors, got {ps}.")
    jobs = {"ps": list(addresses[:ps]), "worker": list(addresses[ps:])}
    spec = ClusterSpec({job: found for job, found in jobs.items() if found}, field="the actors' {job}")
    return [Cluster(spec=spec, task=task) for task in (*spec.ps, *spec.workers)]
