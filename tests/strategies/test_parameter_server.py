"""ParameterServer: the strategy as a whole, over the in-memory transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.ps.jobs import FAST, in_thread, spec_of
from tests.strategies.regression import batches, by_hand, model

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError, ModelError, NonFiniteGradient
from trainband.job.reports import progress_of
from trainband.model.placement import RoundRobin
from trainband.strategies import Engine, Model, ParameterServer
from trainband.wire.memory.transport import MemoryTransport
from trainband.wire.messages.calls import UNLIMITED

STEPS = 20


class Job:
    """A cluster of strategies."""

    def __init__(self, ps: int, workers: int) -> None:
        self.spec = spec_of(ps, workers)
        self.transport = MemoryTransport()
        self.said: list[str] = []
        self.serving: list[Future[str]] = []
        self.replicas: list[Engine] = []
        for i in range(ps):
            strategy = self.strategy("ps", i)
            assert strategy.serves
            self.serving.append(in_thread(strategy.serve, f"ps{i}"))

    def strategy(self, job: str, index: int, **arguments: Any) -> ParameterServer:
        return ParameterServer(
            Cluster(spec=self.spec, task=Task(job, index)),
            transport=self.transport,
            timeouts=FAST,
            say=self.said.append,
            placement=RoundRobin(max_slice_bytes=64),
            **arguments,
        )

    def start(self, of: Model, worker: int = 0) -> Engine:
        replica = self.strategy("worker", worker, device="cpu").start(of)
        self.replicas.append(replica)
        return replica

    def close(self) -> list[str]:
        for replica in self.replicas:
            replica.close()
        return [future.result(20.0) for future in self.serving]


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    """Makes jobs; whatever is left of them ends after the test."""
    jobs: list[Job] = []

    def start(ps: int = 1, workers: int = 1) -> Job:
        jobs.append(Job(ps, workers))
        return jobs[-1]

    yield start
    for job in jobs:
        for replica in job.replicas:
            replica.close()
        for task in job.spec.ps:
            connection = job.transport.connect(job.spec.address(task), FAST)
            try:
                connection.call("shutdown", b"\x81\xa6reason\xa0", timeout_s=5.0)
            except Exception:
                continue
        for future in job.serving:
            future.exception(20.0)


@pytest.mark.smoke
def test_one_trainer_a_strategy(make: Callable[..., Job]) -> None:
    job = make(1, workers=2)
    strategy = job.strategy("worker", 0, device="cpu")
    first = strategy.start(model(optax.sgd(0.1)))
    job.replicas.append(first)
    with pytest.raises(ClusterError, match=r"worker:0: another Trainer of this script already takes part in the job"):
        strategy.start(model(optax.adam(0.1)))
    job.start(model(optax.sgd(0.1)), 1)  # so that the ps does not end
    first.close()
    job.replicas.append(strategy.start(model(optax.sgd(0.1))))


@pytest.mark.parametrize("ps", [1, 3])
def test_one_worker_is_the_loop_by_hand(make: Callable[..., Job], ps: int) -> None:
    job = make(ps)
    optimizer = optax.adam(1e-2)
    replica = job.start(model(optimizer))
    assert (replica.peers.task, replica.peers.is_chief, replica.steps.global_step) == ("worker:0", True, 0)
    assert replica.steps.start_training(STEPS)
    reports = [replica.steps.step(batch) for batch in batches(STEPS)]
    params, losses = by_hand(optimizer, STEPS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), replica.values.params(), params)
    np.testing.assert_allclose([report.loss for report in reports], losses, rtol=1e-4)
    assert [report.done for report in reports] == [False] * (STEPS - 1) + [True]
    assert all(report.applied and report.staleness == 0 for report in reports)
    progress = replica.peers.progress()
    assert progress is not None
    assert (progress.global_step, progress.last_step) == (STEPS, STEPS)
    assert [row.task for row in progress.workers] == ["worker:0"]
    assert job.close() == ["the job is complete"] * ps


def test_alone_it_trains_as_one_device() -> None:
    strategy = ParameterServer(None, say=lambda _: None)
    assert not strategy.serves
    with pytest.raises(ClusterError, match="runs alone and has no job to serve"):
        strategy.serve()
    replica = strategy.start(model())
    assert replica.steps.start_training(3)
    for batch in batches(3):
        report = replica.steps.step(batch)
    assert report.done
    params, _ = by_hand(optax.adam(1e-2), 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), replica.values.params(), params)


INITS: list[tuple[str, Callable[[Any], Any]]] = [
    ("NumPy's float64", lambda _: {"w": np.zeros((2, 3)), "b": np.ones(3)}),
    ("Python's floats", lambda _: {"w": 0.5, "b": jnp.ones(3)}),
    ("bfloat16", lambda _: {"w": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.ones(3)}),
    ("a bare array", lambda _: jnp.ones(3)),
]


@pytest.mark.parametrize("init", [init for _, init in INITS], ids=[name for name, _ in INITS])
def test_whatever_init_returns(make: Callable[..., Job], init: Callable[[Any], Any]) -> None:
    def loss(params: Any, _batch: Any) -> Any:
        return sum(leaf.astype(jnp.float32).sum() for leaf in map(jnp.asarray, jax.tree.leaves(params)))

    of = Model(init=init, loss=loss, optimizer=optax.sgd(0.5))
    replica = make(2).start(of)
    replica.steps.start_training(2)
    first = replica.values.params()
    for _ in range(2):
        replica.steps.step(np.zeros(1, np.float32))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a - 1, b), first, replica.values.params())


def fragile() -> Model:
    """The batch is the gradient."""
    return Model(
        init=lambda _: {"w": jnp.zeros(3), "other": jnp.zeros(4)},
        loss=lambda params, batch: params["w"] @ batch + params["other"].sum(),
        optimizer=optax.sgd(1.0),
    )


NAN, ONES = np.full(3, np.nan, np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize("ps", [1, 2])
def test_a_step_that_is_not_finite_changes_nothing_on_any_ps(make: Callable[..., Job], ps: int) -> None:
    job = make(ps)
    replica = job.start(fragile())
    replica.steps.start_training(10)
    report = replica.steps.step(NAN)
    assert (report.applied, report.global_step, report.done) == (False, 0, False)
    assert "refused a gradient of worker:0 that is not finite" in report.refusal
    for leaf in jax.tree.leaves(replica.values.params()):
        assert (leaf == 0).all()
    report = replica.steps.step(ONES)
    assert (report.applied, report.global_step, report.refusal) == (True, 1, "")
    assert [line for line in job.said if line.endswith("training continues")]


def test_many_in_a_row_are_too_many(make: Callable[..., Job]) -> None:
    job = make()
    replica = job.start(fragile())
    replica.steps.start_training(1000)
    for _ in range(99):
        replica.steps.step(NAN)
    replica.steps.step(ONES)
    for _ in range(99):
        replica.steps.step(NAN)
    with pytest.raises(
        NonFiniteGradient, match=r"100 gradients in a row were not finite; the last: worker:0: a ps .*Check the data"
    ):
        replica.steps.step(NAN)


def test_several_trainings(make: Callable[..., Job]) -> None:
    job = make()
    replica = job.start(model())
    assert not replica.steps.start_training(0)
    assert replica.steps.start_training(2)
    assert [replica.steps.step(batch).done for batch in batches(2)] == [False, True]
    assert replica.steps.start_training(None)
    assert [replica.steps.step(batch).done for batch in batches(2)] == [False, False]
    progress = replica.peers.progress()
    assert progress is not None
    assert progress.last_step is None
    assert replica.steps.global_step == 4
    assert job.close() == ["every worker has left"]


def test_two_workers(make: Callable[..., Job]) -> None:
    job = make(2, 2)

    def work(index: int) -> tuple[int, int]:
        replica = job.start(model(), index)
        applied = 0
        more = replica.steps.start_training(30 if index == 0 else None)  # the chief's number counts
        for batch in batches(1000, seed=index):
            if not more:
                break
            report = replica.steps.step(batch)
            applied += report.applied
            more = not report.done
        replica.close()
        return replica.steps.global_step, applied

    found = [future.result(30.0) for future in [in_thread(lambda i=i: work(i), f"worker{i}") for i in range(2)]]  # type: ignore[misc]
    assert [step for step, _ in found] == [30, 30]
    assert job.close() == ["the job is complete"] * 2


def test_a_worker_catches_up_with_what_another_has_trained(make: Callable[..., Job]) -> None:
    job = make(1, 2)
    first, second = job.start(model()), job.start(model(), 1)
    for replica in (first, second):
        replica.steps.start_training(None)
    data = list(batches(3))
    for batch in data:
        first.steps.step(batch)
    assert second.steps.global_step == 0
    second.steps.catch_up(data[0])
    assert second.steps.global_step == 3
    assert second.steps.step(data[0]).staleness == 0


CLUSTERS: list[tuple[dict[str, list[str]], Task, str]] = [
    ({"worker": ["a:1"]}, Task("worker", 0), "at least one ps, but the cluster has none"),
    ({"ps": ["a:1"]}, Task("ps", 0), "at least one worker, but the cluster has none"),
]


@pytest.mark.parametrize(("spec", "task", "words"), CLUSTERS, ids=range(len(CLUSTERS)))
def test_clusters_that_it_cannot_use(spec: dict[str, list[str]], task: Task, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        ParameterServer(Cluster(spec=ClusterSpec(spec), task=task))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"slice_bytes": 0}, "slice_bytes must be an int, at least 1 byte, got 0"),
        ({"slice_bytes": 1e6}, "slice_bytes must be an int, at least 1 byte, got 1000000.0"),
        ({"slice_bytes": 64, "placement": RoundRobin()}, "slice_bytes excludes placement"),
    ],
)
def test_slice_bytes_that_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        ParameterServer(None, **arguments)


def test_an_evaluator_does_not_join() -> None:
    spec = ClusterSpec({"ps": ["a:1"], "worker": ["b:1"], "evaluator": ["c:1"]})
    strategy = ParameterServer(Cluster(spec=spec, task=Task("evaluator", 0)))
    with pytest.raises(ClusterError):
        strategy.start(model())


def test_a_model_that_cannot_be_trained_is_found_before_anybody_is_called(make: Callable[..., Job]) -> None:
    job = make()
    with pytest.raises(ModelError, match="int32"):
        job.start(model(init=lambda _: {"n": jnp.zeros(3, jnp.int32)}))
    replica = job.start(model())  # the name is free
    replica.close()


def test_progress_without_an_end(make: Callable[..., Job]) -> None:
    job = make()
    replica = job.start(model())
    replica.steps.start_training(None)
    connection = job.transport.connect("ps0:1", FAST)
    connection.close()
    replica.close()
    assert replica.peers.progress() is None  # it has left: nobody tells
    assert UNLIMITED > 1 << 60
    assert callable(progress_of)
