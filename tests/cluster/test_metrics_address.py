"""Where a task serves its metrics, by its environment."""

from __future__ import annotations

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.cluster.resolvers.metrics import HOST, PORT, MetricsAddress, resolve_metrics
from trainband.errors import YourError

SPEC = ClusterSpec({"ps": ["a:1", "a:2"], "chief": ["a:3"], "worker": ["a:4", "a:5"]})


@pytest.mark.parametrize(
    ("task", "elastic", "port"),
    [
        (Task("ps", 0), False, 9400),
        (Task("ps", 1), False, 9401),
        (Task("chief", 0), False, 9402),
        (Task("worker", 1), False, 9404),
        (Task("evaluator", 0), False, 9405),  # which TensorFlow's launchers do not list
        (Task("worker", 2), True, 9405),
        (Task("worker", 7), True, 9410),
    ],
)
def test_tasks_that_share_a_machine_add_their_number(task: Task, elastic: bool, port: int) -> None:
    cluster = Cluster(spec=SPEC, task=task, elastic=elastic)
    assert resolve_metrics(cluster, {PORT: "9400+"}) == MetricsAddress("127.0.0.1", port)
    assert resolve_metrics(cluster, {PORT: "9400", HOST: "::1"}) == MetricsAddress("::1", 9400)
    assert resolve_metrics(cluster, {PORT: "0"}) == MetricsAddress("127.0.0.1", 0)


def test_nobody_serves_metrics_unasked() -> None:
    assert resolve_metrics(None, {}) is None
    assert resolve_metrics(None, {PORT: "", HOST: "0.0.0.0"}) is None
    assert resolve_metrics(None, {PORT: "9400+"}) == MetricsAddress("127.0.0.1", 9400)


@pytest.mark.parametrize("text", ["http", "-1", "70000", "9400++", "9400 ", "٣"])
def test_what_is_no_port_is_an_error(text: str) -> None:
    with pytest.raises(YourError, match=r"TRAINBAND_METRICS_PORT = .*: write a port from 0 to 65535"):
        resolve_metrics(None, {PORT: text})


def test_a_sum_that_is_no_port_is_an_error() -> None:
    cluster = Cluster(spec=SPEC, task=Task("worker", 1))
    with pytest.raises(YourError, match="with the number of this task, 4, the port would be 65536"):
        resolve_metrics(cluster, {PORT: "65532+"})
