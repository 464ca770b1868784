"""On which network interface NCCL listens."""

from __future__ import annotations

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers.nccl import restrict_nccl_to_loopback


@pytest.mark.parametrize(
    ("hosts", "before", "after"),
    [
        (("127.0.0.1", "localhost"), {}, {"NCCL_SOCKET_IFNAME": "=lo"}),
        (("127.0.0.1", "localhost"), {"NCCL_SOCKET_IFNAME": "eth1"}, {"NCCL_SOCKET_IFNAME": "eth1"}),
        (("10.0.0.1", "10.0.0.2"), {}, {}),
    ],
)
def test_a_job_of_one_machine_stays_on_it(
    hosts: tuple[str, ...], before: dict[str, str], after: dict[str, str]
) -> None:
    spec = ClusterSpec({"worker": [f"{host}:{2222 + i}" for i, host in enumerate(hosts)]})
    restrict_nccl_to_loopback(Cluster(spec=spec, task=Task("worker", 0)), before)
    assert before == after
