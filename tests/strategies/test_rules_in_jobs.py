"""What the update rules promise, kept by whole jobs: several workers in threads, over the in-memory transport."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.ps.jobs import in_thread
from tests.strategies.regression import batches, init, loss, model
from tests.strategies.test_parameter_server import Job

from trainband.errors import ClusterError, ModelError
from trainband.ps.rules import Async, Bounded, Sync, UpdateRule
from trainband.strategies import Engine, StepReport, WireDtype

STEPS = 15
SIZES = (4, 10, 16)
"""Examples in a batch of each worker: unequal, so that a plain mean of their gradients would be wrong."""


class RuleJob(Job):
    """A cluster of strategies under one rule."""

    def __init__(self, rule: UpdateRule, ps: int, workers: int, **arguments: Any) -> None:
        self.rule = rule
        self.arguments = arguments
        super().__init__(ps, workers)

    def strategy(self, job: str, index: int, **arguments: Any) -> Any:
        return super().strategy(job, index, update=self.rule, **self.arguments, **arguments)

    def join(self, of: Any) -> list[Engine]:
        """All workers, the chief first."""
        return [self.start(of, worker) for worker in range(len(self.spec.workers))]


@pytest.fixture
def make() -> Iterator[Callable[..., RuleJob]]:
    jobs: list[RuleJob] = []

    def start(rule: UpdateRule, ps: int = 1, workers: int = 3, **arguments: Any) -> RuleJob:
        jobs.append(RuleJob(rule, ps, workers, **arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def feed_of(worker: int) -> list[Any]:
    return list(batches(STEPS, SIZES[worker], seed=worker))


def train(replica: Engine, feed: list[Any], steps: int | None, jitter: random.Random | None = None) -> list[StepReport]:
    """Steps until the job is done or the feed is used up; a jitter keeps others waiting for a moment now and then."""
    replica.steps.start_training(steps)
    reports = []
    for batch in feed:
        if jitter is not None and jitter.random() < 0.3:
            threading.Event().wait(jitter.random() * 0.01)
        reports.append(replica.steps.step(batch))
        if reports[-1].done:
            break
    return reports


def run(job: RuleJob, of: Any, seed: int = 0) -> tuple[Any, list[list[StepReport]]]:
    """Trains on all workers at once, in a timing of its own; the params at the end, and everybody's reports."""
    replicas = job.join(of)
    dice = random.Random(seed)
    futures = [
        in_thread(lambda r=r, i=i: train(r, feed_of(i), STEPS, random.Random(dice.random())), f"worker{i}")  # type: ignore[misc]
        for i, r in enumerate(replicas)
    ]
    reports = [future.result(60.0) for future in futures]
    return replicas[0].values.params(), reports


@pytest.mark.parametrize("ps", [1, 2])
def test_sync_is_training_on_the_union_of_the_batches(make: Callable[..., RuleJob], ps: int) -> None:
    """To float32 rounding: the sums are made in another order. Tolerance: 1e-5 of a param, 15 steps of Adam."""
    params, reports = run(make(Sync(), ps), model(optax.adam(1e-2)))
    union = [
        tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        for parts in zip(*(feed_of(worker) for worker in range(3)), strict=True)
    ]
    optimizer = optax.adam(1e-2)
    wanted: Any = init(jax.random.key(0))
    state = optimizer.init(wanted)
    for batch in union:
        gradient = jax.grad(lambda p, b=batch: loss(p, b)[0])(wanted)
        updates, state = optimizer.update(gradient, state, wanted)
        wanted = optax.apply_updates(wanted, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), params, wanted)
    assert all(report.applied and report.staleness == 0 for worker in reports for report in worker)
    assert [len(worker) for worker in reports] == [STEPS] * 3


@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
def test_sync_gives_the_same_bits_whatever_the_timing(make: Callable[..., RuleJob], wire_dtype: str | None) -> None:
    results = [run(make(Sync(), 2, wire_dtype=wire_dtype), model(optax.adam(1e-2)), seed)[0] for seed in range(3)]
    for other in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, results[0], other)


def test_sync_goes_on_without_a_worker_whose_data_ends(make: Callable[..., RuleJob]) -> None:
    job = make(Sync(), workers=2)
    chief, other = job.join(model(optax.sgd(0.1)))
    done = in_thread(lambda: train(chief, feed_of(0), STEPS), "chief")
    train(other, feed_of(1)[:3], STEPS)
    other.close()
    reports = done.result(60.0)
    assert reports[-1].done
    assert reports[-1].global_step == STEPS


def test_sync_with_a_backup_counts_what_it_drops(make: Callable[..., RuleJob]) -> None:
    job = make(Sync(backups=1), workers=3)
    _, reports = run(job, model(optax.sgd(0.1)))
    assert max(worker[-1].global_step for worker in reports) == STEPS
    status = job.replicas[0].peers.status()  # type: ignore[attr-defined]
    assert status.version == STEPS
    pushed = sum(worker.examples for worker in status.workers)
    assert pushed == status.examples_applied + status.examples_dropped
    assert sum(not report.applied for worker in reports for report in worker) == sum(w.dropped for w in status.workers)


def test_bounded_keeps_workers_together(make: Callable[..., RuleJob]) -> None:
    """With staleness 2 the fast worker is never more than two steps ahead of the slow one, once both have begun."""
    job = make(Bounded(staleness=2), workers=2)
    fast, slow = job.join(model(optax.sgd(0.01)))
    fast.steps.start_training(40)
    slow.steps.start_training(40)
    feed = list(batches(100))
    slow.steps.step(feed[0])  # from its first push on, it is counted
    taken = {"fast": 0, "slow": 1}
    lead: list[int] = []
    news = threading.Condition()

    def hurry() -> None:
        for batch in feed:
            report = fast.steps.step(batch)
            with news:
                taken["fast"] += 1
                lead.append(taken["fast"] - taken["slow"])
                news.notify()
            if report.done:
                return

    runner = in_thread(hurry, "fast")
    for batch in feed[1:]:
        with news:  # the fast one is as far ahead as it may be, or is done
            assert news.wait_for(lambda: taken["fast"] - taken["slow"] >= 2 or runner.done(), 60.0)
            taken["slow"] += 1  # before its push: the fast one may be answered before this thread continues
        if slow.steps.step(batch).done:
            break
    runner.result(30.0)
    assert max(lead) <= 2
    assert taken["slow"] >= 15


def test_overlap_reports_the_step_before_and_loses_none(make: Callable[..., RuleJob]) -> None:
    job = make(Async(), workers=1, overlap=True)
    (replica,) = job.join(model(optax.sgd(0.01)))
    reports = train(replica, list(batches(STEPS + 5)), STEPS)
    assert not reports[0].applied
    assert all(report.applied for report in reports[1:])
    assert [report.staleness for report in reports[1:]] == [0, *[1] * (STEPS - 1)]
    assert replica.steps.global_step == STEPS
    assert len(reports) == STEPS + 1  # the last gradient found the job complete and was not sent


def test_overlap_cannot_go_with_sync() -> None:
    with pytest.raises(ClusterError, match="overlap=True excludes Sync"):
        RuleJob(Sync(), 1, 1, overlap=True)


@pytest.mark.parametrize("stall_s", [0.0, -1.0])
def test_to_wait_for_nobody_at_all_is_refused(stall_s: float) -> None:
    with pytest.raises(ClusterError, match=f"stall_s must be > 0 seconds, got {stall_s}"):
        RuleJob(Sync(), 1, 1, stall_s=stall_s)


def test_a_quorum_that_can_never_be_is_refused() -> None:
    with pytest.raises(
        ClusterError, match=r"Sync\(backups=2\) leaves no gradient to wait for in a cluster of 2 workers"
    ):
        RuleJob(Sync(backups=2), 1, 2)


def test_stale_updates_are_scaled(make: Callable[..., RuleJob]) -> None:
    """Two pushes from version 0, of SGD: the second counts whole (staleness 1), a third from version 0 half."""
    job = make(Async(staleness_scale=1.0), workers=3)
    replicas = job.join(model(optax.sgd(1.0)))
    for replica in replicas:
        replica.steps.start_training(3)
    batch = feed_of(0)[0]
    start = replicas[0].values.params()
    for replica in replicas:
        replica.steps.step(batch)
    gradient: Any = jax.grad(lambda p: loss(p, batch)[0])(start)
    wanted = jax.tree.map(lambda p, g: p - (1 + 1 + 0.5) * g, start, gradient)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), replicas[0].values.params(), wanted
    )


def test_delay_compensation_follows_its_formula(make: Callable[..., RuleJob]) -> None:
    factor = 0.5
    job = make(Async(delay_compensation=factor), workers=2)
    replicas = job.join(model(optax.sgd(0.1)))
    for replica in replicas:
        replica.steps.start_training(2)
    start = replicas[0].values.params()
    replicas[1].values.params()
    first, second = feed_of(0)[0], feed_of(1)[0]

    def gradient(params: Any, batch: Any) -> Any:
        return jax.grad(lambda p: loss(p, batch)[0])(params)

    replicas[0].steps.step(first)
    replicas[1].steps.step(second)
    after_first = jax.tree.map(lambda p, g: p - 0.1 * g, start, gradient(start, first))
    wanted = jax.tree.map(
        lambda w, g, w0: w - 0.1 * (g + factor * g * g * (w - w0)), after_first, gradient(start, second), start
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), replicas[0].values.params(), wanted
    )


def counted(params: Any, state: Any, batch: Any, key: Any) -> Any:
    """A loss with a state: the mean of x in the newest batch, and a count of steps."""
    del key
    value, metrics = loss(params, batch)
    return value, ({"mean": batch[0].mean(), "steps": state["steps"] + 1}, metrics)


def first_state(key: Any) -> Any:
    del key
    return {"mean": jnp.zeros(()), "steps": jnp.zeros((), jnp.int32)}


@pytest.mark.parametrize("merge", ["mean", "chief"])
def test_model_state_lives_on_the_ps_and_is_merged(make: Callable[..., RuleJob], merge: str) -> None:
    job = make(Sync(), ps=2)
    params, _ = run(job, model(optax.sgd(0.1), loss=counted, init_state=first_state, state_merge=merge))
    del params
    state = job.replicas[0].values.model_state()
    last = [feed_of(worker)[STEPS - 1][0] for worker in range(3)]
    union = np.concatenate(last).mean()  # means of unequal batches, weighted by their sizes
    np.testing.assert_allclose(state["mean"], union if merge == "mean" else last[0].mean(), rtol=1e-5)
    assert state["steps"] == STEPS
    status = job.replicas[0].peers.status()  # type: ignore[attr-defined]
    assert {"state/mean", "state/steps"} <= {variable.name for variable in status.variables}


def test_model_state_under_async_is_that_of_the_newest_push(make: Callable[..., RuleJob]) -> None:
    job = make(Async(), workers=1)
    (replica,) = job.join(model(optax.adam(0.1), loss=counted, init_state=first_state))
    train(replica, feed_of(0), STEPS)
    replica.values.params()
    state = replica.values.model_state()
    np.testing.assert_allclose(state["mean"], feed_of(0)[STEPS - 1][0].mean(), rtol=1e-6)
    assert state["steps"] == STEPS


WIRE: list[tuple[Any, UpdateRule, bool, bool]] = [
    ("bfloat16", Async(), True, True),
    (jnp.float16, Sync(), True, True),
    (WireDtype(push=jnp.bfloat16), Bounded(staleness=0), True, False),
    (WireDtype(pull=jnp.bfloat16), Sync(), False, True),
]


@pytest.mark.parametrize(("wire_dtype", "rule", "push", "pull"), WIRE)
def test_gradients_and_params_may_travel_narrow(
    make: Callable[..., RuleJob], wire_dtype: Any, rule: UpdateRule, push: bool, pull: bool
) -> None:
    """Losses show the params that a worker had, moves of the params show the gradients. Those on the ps stay wide."""

    def narrowed(tree: Any, dtype: Any, so: bool) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(dtype).astype(leaf.dtype), tree) if so else tree

    dtype = jnp.float16 if wire_dtype is jnp.float16 else jnp.bfloat16
    job = make(rule, ps=2, workers=1, wire_dtype=wire_dtype)
    (replica,) = job.join(model(optax.sgd(1.0)))
    replica.steps.start_training(2)
    losses = []
    for batch in feed_of(0)[:2]:
        held = replica.values.params()
        used = narrowed(held, dtype, pull)
        wanted: Any = narrowed(jax.grad(lambda p, of=batch: loss(p, of)[0])(used), dtype, push)
        losses.append(replica.steps.step(batch).loss)
        np.testing.assert_allclose(losses[-1], loss(used, batch)[0], rtol=1e-6)
        moved = jax.tree.map(lambda a, b: a - b, held, replica.values.params())
        jax.tree.map(lambda m, w: np.testing.assert_allclose(m, w, rtol=2**-8, atol=1e-6), moved, wanted)
    assert {leaf.dtype for leaf in jax.tree.leaves(held)} == {np.dtype("float32")}
    assert any((leaf != leaf.astype(dtype)).any() for leaf in jax.tree.leaves(held))
    status = replica.peers.status()  # type: ignore[attr-defined]
    assert status.bytes_in * (1 + push) == 2 * status.shard_bytes
    assert status.bytes_saved == status.shard_bytes * (push + pull)
    times, whole = replica.steps.times, 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(held))
    assert (times.sent_bytes, times.received_bytes) == (whole // (1 + push), whole // (1 + pull))
    (other,) = make(rule, ps=2, workers=1, wire_dtype=wire_dtype).join(model(optax.sgd(1.0)))
    other.steps.start_training(2)  # it never reads: its second step begins with what answered the first push
    assert [other.steps.step(batch).loss for batch in feed_of(0)[:2]] == losses


def test_variables_without_elements_and_many_scalars_are_trained(make: Callable[..., RuleJob]) -> None:
    def many(key: jax.Array) -> Any:
        return {"none": jnp.zeros((0, 3)), "empty": jnp.zeros((4, 0)), "scalars": [jnp.zeros(())] * 300, **init(key)}

    job = make(Async(), ps=2, workers=1, wire_dtype="bfloat16")
    (replica,) = job.join(model(optax.sgd(0.1), init=many, loss=lambda p, b: (loss(p, b)[0] + sum(p["scalars"]), {})))
    assert all(report.applied for report in train(replica, feed_of(0), 2))
    params = replica.values.params()
    assert (params["none"].shape, params["empty"].shape) == ((0, 3), (4, 0))
    np.testing.assert_allclose(params["scalars"], -0.2, rtol=1e-2)


@pytest.mark.parametrize("wire_dtype", ["int8", "tiny", jnp.int32])
def test_a_wire_dtype_that_cannot_be(wire_dtype: Any) -> None:
    with pytest.raises(ModelError, match="must be bfloat16 or float16"):
        RuleJob(Async(), 1, 1, wire_dtype=wire_dtype)


@pytest.mark.parametrize("rule", [Sync(), Bounded(staleness=0)], ids=["sync", "bounded"])
def test_nobody_waits_for_a_worker_that_stays_without_data(make: Callable[..., RuleJob], rule: UpdateRule) -> None:
    """Its process lives on, with heartbeats, and even asks for the next training."""
    job = make(rule, workers=2)
    chief, other = job.join(model(optax.sgd(0.1)))
    done = in_thread(lambda: train(chief, feed_of(0), STEPS), "chief")
    train(other, feed_of(1)[:3], STEPS)
    other.steps.pause()
    assert done.result(30.0)[-1].done
    second = in_thread(lambda: train(other, feed_of(1), 4), "other again")
    assert train(chief, feed_of(0), 4)[-1].done
    assert second.result(30.0)[-1].done


def test_a_straggler_of_one_training_does_not_reach_the_next(make: Callable[..., RuleJob]) -> None:
    job = make(Async(), workers=2)
    chief, slow = job.join(model(optax.sgd(0.1)))
    chief.steps.start_training(3)
    slow.steps.start_training(3)
    for batch in feed_of(0)[:3]:
        chief.steps.step(batch)
    chief.steps.start_training(5)
    report = slow.steps.step(feed_of(1)[0])  # of the first training, long over
    assert (report.applied, report.done) == (False, True)
    assert slow.steps.start_training(5)
    assert slow.steps.step(feed_of(1)[1]).global_step == 4


def test_scaling_stale_updates_leaves_the_model_state_alone(make: Callable[..., RuleJob]) -> None:
    job = make(Async(staleness_scale=1.0), workers=3)
    replicas = job.join(model(optax.sgd(1.0), loss=counted, init_state=first_state))
    for replica in replicas:
        replica.steps.start_training(3)
    for worker, replica in enumerate(replicas):
        replica.steps.step(feed_of(worker)[0])
    replicas[0].values.params()
    state = replicas[0].values.model_state()
    np.testing.assert_allclose(state["mean"], feed_of(2)[0][0].mean(), rtol=1e-6)
    assert state["steps"] == 1


def test_the_last_push_of_overlapping_steps_is_not_lost(make: Callable[..., RuleJob]) -> None:
    job = make(Async(), workers=1, overlap=True)
    (replica,) = job.join(model(optax.sgd(0.01)))
    train(replica, feed_of(0)[:4], None)
    replica.steps.pause()
    assert replica.steps.global_step == 4
