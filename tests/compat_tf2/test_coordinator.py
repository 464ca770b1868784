"""ParameterServerStrategy and ClusterCoordinator: closures on workers, with variables on parameter servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from trainband.launch.ports import ReservedPorts


@contextmanager
def cluster(workers: int = 2, ps: int = 1, partitioner: Any = None) -> Iterator[SimpleNamespace]:
    """Servers in this process, a strategy on them, and its coordinator."""
    with ReservedPorts(workers + ps) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        spec = tf.train.ClusterSpec({"worker": addresses[:workers], "ps": addresses[workers:]})
        servers = {
            f"{job}:{i}": tf.distribute.Server(spec, job_name=job, task_index=i)
            for job, count in (("worker", workers), ("ps", ps))
            for i in range(count)
        }
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    try:
        yield SimpleNamespace(servers=servers, strategy=strategy, coordinator=coordinator)
    finally:
        strategy.cluster.close()
        for server in servers.values():
            server.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[SimpleNamespace]:
    with cluster(2, 2) as found:
        found.coordinator.schedule(lambda: tf.constant(1)).fetch()  # so that no test begins threads of its own
        yield found


def batches(seed: int = 0) -> Iterator[Any]:
    rng = np.random.RandomState(seed)
    while True:
        yield rng.rand(8, 4).astype(np.float32), rng.randint(0, 3, 8)


class Training:
    """A small model, and a step of it."""

    def __init__(self, strategy: Any) -> None:
        keras = tf.keras
        keras.utils.set_random_seed(1)
        with strategy.scope():
            self.model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(3)])
            self.optimizer = keras.optimizers.Adam(0.1)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

        @tf.function  # type: ignore[untyped-decorator]
        def step(iterator: Any) -> Any:
            def replica_step(batch: Any) -> Any:
                features, labels = batch
                with tf.GradientTape() as tape:
                    logits = self.model(features, training=True)
                    loss = tf.nn.compute_average_loss(self.loss(labels, logits))
                gradients = tape.gradient(loss, self.model.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
                self.accuracy.update_state(labels, logits)
                return loss

            losses = strategy.run(replica_step, args=(next(iterator),))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        self.step = step


@pytest.mark.parametrize("shards", [1, 2])
def test_a_training_is_what_one_process_computes(shards: int) -> None:
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(shards)
    with cluster(1, 2, partitioner) as job:
        training = Training(job.strategy)
        iterator = iter(job.coordinator.create_per_worker_dataset(batches))
        losses = [job.coordinator.schedule(training.step, args=(iterator,)) for _ in range(6)]
        job.coordinator.join()
        found = job.coordinator.fetch(losses)
        alone = Training(tf.distribute.get_strategy())
        own = batches()
        expected = [float(alone.step.python_function(own)) for _ in range(6)]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert int(training.optimizer.iterations) == 6
        assert float(training.accuracy.result()) == pytest.approx(float(alone.accuracy.result()))
        for one, other in zip(training.model.get_weights(), alone.model.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        variables = job.strategy.cluster.variables
        model = training.model
        entries = [variables.entry(one) for one in (*model.trainable_weights, *training.optimizer.variables[2:])]
        assert {ps for one in entries for ps in one.places} == {0, 1}
        assert all(one.is_divided == (shards == 2) for one in entries)
        kernel = model.layers[0].kernel
        shown = model.layers[0].weights
        assert [one.shape.as_list() for one in shown] == ([[2, 5], [2, 5], [3], [2]] if shards == 2 else [[4, 5], [5]])
        np.testing.assert_array_equal(np.concatenate([one.numpy() for one in shown[:shards]]), kernel.numpy())
        shown[shards - 1].assign(np.ones(shown[shards - 1].shape))
        assert kernel.numpy()[-1].tolist() == [1] * 5
        model.set_weights([2 * one for one in model.get_weights()])
        assert kernel.numpy()[-1].tolist() == [2] * 5


def test_what_is_assigned_outside_is_seen_by_the_next_closure(shared: SimpleNamespace) -> None:
    training = Training(shared.strategy)
    iterator = iter(shared.coordinator.create_per_worker_dataset(batches))
    for _ in range(4):
        shared.coordinator.schedule(training.step, args=(iterator,))
    shared.coordinator.join()
    training.accuracy.reset_state()
    training.model.set_weights([np.zeros_like(one) for one in training.model.get_weights()])
    loss = shared.coordinator.schedule(training.step, args=(iterator,))
    assert float(loss.fetch()) == pytest.approx(np.log(3), rel=1e-5)
    assert float(training.accuracy.count.numpy()) == 8


def test_additions_of_all_workers_count(shared: SimpleNamespace) -> None:
    with shared.strategy.scope():
        total = tf.Variable(0.0)
        latest = tf.Variable([0, 0])

    @tf.function  # type: ignore[untyped-decorator]
    def add(amount: Any) -> Any:
        total.assign_add(amount)
        latest.assign([1, 2])
        return total.read_value()

    values = [shared.coordinator.schedule(add, args=(tf.constant(float(n)),)) for n in range(100)]
    shared.coordinator.join()
    assert float(total) == sum(range(100))
    assert latest.numpy().tolist() == [1, 2]
    assert max(float(one.fetch()) for one in values) <= sum(range(100))
    assert shared.coordinator.done()


def test_an_error_of_a_closure_comes_out_of_join(shared: SimpleNamespace) -> None:
    def fails() -> None:
        raise KeyError("nothing is there")

    value = shared.coordinator.schedule(fails)
    with pytest.raises(KeyError, match="nothing is there"):
        shared.coordinator.join()
    with pytest.raises(KeyError):
        value.fetch()
    assert shared.coordinator.schedule(lambda: tf.constant(3) * 2).fetch() == 6
    shared.coordinator.join()


def test_a_demand_that_does_not_hold_fails_on_the_worker(shared: SimpleNamespace) -> None:
    def look(index: Any) -> Any:
        return tf.gather(tf.constant([1.0, 2.0]), index)

    assert shared.coordinator.schedule(look, args=(tf.constant([1]),)).fetch() == [2.0]
    shared.coordinator.schedule(look, args=(tf.constant([7]),))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not all in"):
        shared.coordinator.join()


def test_a_dataset_that_ends(shared: SimpleNamespace) -> None:
    data = shared.coordinator.create_per_worker_dataset(lambda: iter([np.float32(1), np.float32(2)]))
    iterator = iter(data)
    for _ in range(9):
        shared.coordinator.schedule(lambda numbers: next(numbers) + 1, args=(iterator,))
    with pytest.raises(tf.errors.OutOfRangeError):
        shared.coordinator.join()


def test_a_function_that_cannot_be_traced_runs_in_the_coordinator(
    shared: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    with shared.strategy.scope():
        count = tf.Variable(0)

    def looks(number: Any) -> Any:
        if number.numpy() > 1:
            count.assign_add(1)
        return number * 2

    values = [shared.coordinator.schedule(looks, args=(tf.constant(n),)) for n in range(4)]
    assert [int(one.fetch()) for one in values] == [0, 2, 4, 6]
    assert int(count) == 2
    assert capfd.readouterr().err.count("looks runs in the coordinator") == 1


def test_a_function_decides_by_the_values_of_each_run(shared: SimpleNamespace) -> None:
    with shared.strategy.scope():
        count = tf.Variable(0)

    def decides(number: Any) -> Any:
        if number > 1:
            count.assign_add(1)
            return number * 2
        return number - 1

    values = [shared.coordinator.schedule(decides, args=(tf.constant(n),)) for n in (2, 3, 1, 0, 4)]
    assert [int(one.fetch()) for one in values] == [4, 6, 0, -1, 8]
    assert int(count) == 3


def test_random_numbers_are_others_each_time(shared: SimpleNamespace) -> None:
    def draw() -> Any:
        return tf.random.normal([3])

    first, second = (shared.coordinator.schedule(draw).fetch() for _ in range(2))
    assert not np.array_equal(first, second)


def test_closures_of_a_worker_that_dies_run_again() -> None:
    with cluster(workers=2) as job:
        with job.strategy.scope():
            total = tf.Variable(0.0)
        iterator = iter(job.coordinator.create_per_worker_dataset(lambda: iter([np.float32(1)] * 1000)))

        def add(numbers: Any) -> Any:
            total.assign_add(next(numbers))
            return total.read_value()

        job.coordinator.schedule(add, args=(iterator,)).fetch()
        values = [job.coordinator.schedule(add, args=(iterator,)) for _ in range(200)]
        job.servers["worker:0"].stop()
        job.coordinator.join()
        assert all(float(one.fetch()) > 0 for one in values)
        assert float(total) >= 201


def test_a_ps_that_dies_is_an_error() -> None:
    with cluster() as job:
        with job.strategy.scope():
            total = tf.Variable(0.0)
        add = lambda: total.assign_add(1.0)  # noqa: E731
        job.coordinator.schedule(add).fetch()
        job.servers["ps:0"].stop()
        job.coordinator.schedule(add)
        with pytest.raises(tf.errors.UnavailableError, match="ps:0"):
            job.coordinator.join()
        with pytest.raises(tf.errors.UnavailableError, match="ps:0"):
            total.numpy()


def test_partitioners() -> None:
    # TensorFlow 2.21 gives these.
    partitioners = tf.distribute.experimental.partitioners
    shape = tf.TensorShape([6, 1])
    assert partitioners.FixedShardsPartitioner(2)(shape, tf.float32) == [2, 1]
    assert partitioners.MinSizePartitioner(min_shard_bytes=4, max_shards=2)(shape, tf.float32) == [2, 1]
    assert partitioners.MinSizePartitioner(min_shard_bytes=4, max_shards=10)(shape, tf.float32) == [6, 1]
    assert partitioners.MaxSizePartitioner(max_shard_bytes=4)(shape, tf.float32) == [6, 1]
    assert partitioners.MaxSizePartitioner(max_shard_bytes=1024)(shape, tf.float32) == [1, 1]
    with pytest.raises(ValueError, match="must be positive"):
        partitioners.MinSizePartitioner(min_shard_bytes=0)


def test_another_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="ClusterCoordinator"):
        tf.distribute.coordinator.ClusterCoordinator(tf.distribute.get_strategy())
    with pytest.raises(ValueError, match="at least one task of the job 'ps'"):
        tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({"worker": ["127.0.0.1:1"]}))
        )
