"""Conditional accumulators, barriers and keyed hashes."""

from __future__ import annotations

import threading

import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.input.barriers import Barrier
from trainband.compat.tf1.input.hashes import strong_hash


@pytest.fixture(autouse=True)
def graph() -> None:
    tf.reset_default_graph()


def test_the_mean_of_gradients_leaves_out_those_of_earlier_steps() -> None:
    held = tf.ConditionalAccumulator(tf.float32, shape=[2])
    gradient, step = tf.placeholder(tf.float32), tf.placeholder(tf.int64)
    add, count, mean = held.apply_grad(gradient, step), held.num_accumulated(), held.take_grad(2)
    with tf.Session() as session:
        taken: list[list[float]] = []
        taking = threading.Thread(target=lambda: taken.append(session.run(mean).tolist()))
        session.run(add, {gradient: [1, 2], step: 0})
        taking.start()  # and waits for a second one
        session.run(add, {gradient: [3, 6], step: 0})
        taking.join(30)
        assert taken == [[2.0, 4.0]]
        session.run(add, {gradient: [9, 9], step: 0})
        assert session.run(count) == 0
        session.run(add, {gradient: [9, 9], step: 1})
        assert session.run(count) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
            session.run(add, {gradient: [1], step: 1})


def test_the_mean_of_rows_is_over_the_gradients_that_have_them() -> None:
    held = tf.SparseConditionalAccumulator(tf.float32, shape=[5, 1])
    with tf.Session() as session:
        session.run(held.apply_indexed_slices_grad(tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([3, 1]))))
        session.run(held.apply_grad([3], [[8.0]]))
        found = session.run(held.take_indexed_slices_grad(1))
    assert found.indices.tolist() == [1, 3]
    assert found.values.tolist() == [[4.0], [5.0]]


def test_a_barrier_gives_elements_that_are_complete() -> None:
    barrier = Barrier((tf.float32, tf.int32), shapes=((), ()))
    first, second = barrier.insert_many(0, ["a", "b"], [1.0, 2.0]), barrier.insert_many(1, ["b"], [20])
    numbers, keys, values = barrier.take_many(2, allow_small_batch=True)
    with tf.Session() as session:
        session.run(first)
        session.run(second)
        assert session.run([barrier.ready_size(), barrier.incomplete_size()]) == [1, 1]
        session.run(barrier.close())
        found = session.run([numbers, keys, *values])
        assert [one.tolist() for one in found] == [[-(2**63)], [b"b"], [2.0], [20]]
        with pytest.raises(tf.errors.CancelledError, match="is closed"):
            session.run(barrier.insert_many(0, ["c"], [3.0]))
        session.run(barrier.close(cancel_pending_enqueues=True))
        with pytest.raises(tf.errors.OutOfRangeError, match="insufficient elements"):
            session.run(numbers)


def test_keyed_hashes_are_siphash() -> None:
    """The example of SipHash's authors."""
    key = [int.from_bytes(bytes(range(8 * i, 8 * i + 8)), "little") for i in range(2)]
    assert strong_hash(bytes(range(15)), key) == 0xA129CA6149BE45E5


def test_tables_refuse_contents_that_do_not_fit() -> None:
    table = tf.contrib.lookup
    with pytest.raises(ValueError, match="not compatible"):
        table.KeyValueTensorInitializer(["a", "b"], tf.constant([1], tf.int64))
    with pytest.raises(ValueError, match="Filename required"):
        table.TextFileIdTableInitializer("")
    with pytest.raises(TypeError, match="HasherSpec"):
        table.index_table_from_tensor(["a"], num_oov_buckets=1, hasher_spec=1)
    default = tf.placeholder(tf.int64, [])
    found = table.HashTable(table.KeyValueTensorInitializer(["a"], tf.constant([1], tf.int64)), default)
    with tf.Session() as session:
        session.run(tf.tables_initializer())
        assert session.run(found.lookup(tf.constant(["a", "b"])), {default: 7}).tolist() == [1, 7]
