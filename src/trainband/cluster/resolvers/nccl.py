"""The network interface on which NCCL listens."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from trainband.cluster.address import Address
from trainband.cluster.cluster import Cluster

INTERFACE = "NCCL_SOCKET_IFNAME"


def restrict_nccl_to_loopback(cluster: Cluster, environ: MutableMapping[str, str] | None = None) -> None:
    """Makes NCCL listen only on the loopback interface if all workers of a cluster are there.

    NCCL authenticates no peers and by default uses any interface but that one. The user's own setting stays.

    Args:
      cluster: whose workers compute in lockstep.
      environ: the environment to change; `os.environ` when `None`.

    Source: NVIDIA, NCCL documentation, "Environment Variables", NCCL_SOCKET_IFNAME.
    """
    environ = os.environ if environ is None else environ
    addresses = (Address.parse(cluster.spec.address(task), str(task)) for task in cluster.spec.workers)
    if all(address.is_loopback for address in addresses):
        environ.setdefault(INTERFACE, "=lo")
