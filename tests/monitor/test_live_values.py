"""Values of variables, read from the ps of a job that runs."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import optax
import pytest
from msgspec.structs import replace
from tests.ps.jobs import FAST, in_thread
from tests.ps.plans import blocks_of, plan_of

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.errors import PeerError, YourError
from trainband.launch import ReservedPorts
from trainband.monitor import live_values
from trainband.monitor.collector import Collector
from trainband.monitor.live_feed import LiveFeed
from trainband.monitor.live_values import LiveValues
from trainband.monitor.snapshot import JobSnapshot
from trainband.ps.server import Server
from trainband.ps.worker.client import JobClient
from trainband.wire.network import Network

PARAMS = {
    "large": np.arange(12, dtype=np.float32).reshape(6, 2),
    "half": np.ones(3, ml_dtypes.bfloat16),
    "scalar": np.float32(7.0),
}


@pytest.fixture
def snapshot() -> Iterator[JobSnapshot]:
    """Of a job of two ps that serve on this machine, whose worker has made one update of three."""
    with ReservedPorts(3) as ports:
        spec = ClusterSpec({"ps": list(ports.addresses[:2]), "worker": [ports.addresses[2]]})
        servers = [Server(spec, job_name="ps", task_index=i, timeouts=FAST, say=lambda _: None) for i in (0, 1)]
        served = [in_thread(server.join, f"ps{i}") for i, server in enumerate(servers)]
        plan = plan_of(PARAMS, optax.sgd(1.0), ps=2)
        cluster = Cluster(spec=spec, task=Task("worker", 0))
        client = JobClient(cluster, plan, transport=Network(), timeouts=FAST, say=lambda _: None)
        try:
            now = client.join(lambda: blocks_of(plan, PARAMS))
            client.training.start_training(1, 3)
            gradient = blocks_of(plan, {name: np.ones_like(value) for name, value in PARAMS.items()})
            now = client.exchanger.push(gradient, now.versions, loss=0.1, examples=1, finite=True)
            feed = LiveFeed(ports.addresses[0])
            collector = Collector(ports.addresses[0], feed, wait_s=60.0)
            while len(feed.snapshot.ps) < 2 or not all(ps.up for ps in feed.snapshot.ps):
                collector.poll()
            collector.close()
            yield feed.snapshot
            while not now.done:
                now = client.exchanger.push(gradient, now.versions, loss=0.1, examples=1, finite=True)
        finally:
            client.leave()
            assert {one.result(20.0) for one in served} == {"the job is complete"}


def test_they_are_those_of_the_last_update(snapshot: JobSnapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    values = LiveValues(lambda: snapshot, lambda: credentials_for(snapshot.source))
    assert {piece.ps for variable in snapshot.variables for piece in variable.slices} == {"ps:0", "ps:1"}
    large = values.summary("large")
    assert (large.global_step, large.elements, large.minimum, large.maximum) == (1, 12, -1.0, 10.0)
    assert large.norm == pytest.approx(np.linalg.norm(np.arange(12.0) - 1.0))
    half = values.summary("half")
    assert (half.elements, half.zeros, half.mean) == (3, 3, 0.0)
    assert values.summary("scalar").mean == 6.0
    with pytest.raises(YourError, match="no variable 'else'"):
        values.summary("else")
    gone = replace(snapshot, ps=tuple(replace(ps, address="127.0.0.1:1") for ps in snapshot.ps))
    with pytest.raises(PeerError, match="nothing listens at 127"):
        LiveValues(lambda: gone, lambda: credentials_for(snapshot.source)).summary("large")
    monkeypatch.setattr(live_values, "MOST_BYTES", 10)
    with pytest.raises(YourError, match="large has 48 B, but at most 10 B are read"):
        values.summary("large")
