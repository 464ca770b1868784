"""Workers that compute in lockstep: the clusters that are refused before anything is started."""

from __future__ import annotations

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError
from trainband.strategies import MultiWorkerMirrored


def test_parameter_servers_have_no_place_here() -> None:
    cluster = Cluster(spec=ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]}), task=Task("worker", 0))
    with pytest.raises(ClusterError, match="MultiWorkerMirrored needs no ps, but the cluster has ps:0; leave them out"):
        MultiWorkerMirrored(cluster)
