"""Queues, and the threads that fill them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf


def in_thread(action: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that has begun, and what it will have raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_what_goes_in_first_comes_out_first() -> None:
    queue = tf.FIFOQueue(10, [tf.int32, tf.string], shapes=[[2], []])
    put = queue.enqueue([[1, 2], "a"])
    many = queue.enqueue_many([[[3, 4], [5, 6], [7, 8]], ["b", "c", "d"]])
    numbers, texts = queue.dequeue_many(2)
    single, _ = queue.dequeue()
    left, _ = queue.dequeue_up_to(5)
    assert numbers.shape.as_list() == [2, 2]
    assert left.shape.as_list() == [None, 2]
    assert single.shape.as_list() == [2]
    with tf.Session() as session:
        session.run([put])
        session.run(many)
        assert session.run(queue.size()) == 4
        found = session.run([numbers, texts])
        np.testing.assert_array_equal(found[0], [[1, 2], [3, 4]])
        assert found[1].tolist() == [b"a", b"b"]
        np.testing.assert_array_equal(session.run(single + 1), [6, 7])
        session.run(queue.close())
        with pytest.raises(tf.errors.CancelledError, match="is closed"):
            session.run(put)
        with pytest.raises(tf.errors.OutOfRangeError, match=r"insufficient elements \(requested 2, current size 1\)"):
            session.run(numbers)
        np.testing.assert_array_equal(session.run(left), [[7, 8]])
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(left)
        assert session.run(queue.is_closed())


def test_a_full_queue_waits_and_closing_may_end_that() -> None:
    queue = tf.FIFOQueue(2, tf.float32, shapes=[])
    put, take = queue.enqueue_many([np.arange(5, dtype=np.float32)]), queue.dequeue_many(5)
    one, cancel, size = queue.enqueue(9.0), queue.close(cancel_pending_enqueues=True), queue.size()
    with tf.Session() as session:
        thread, errors = in_thread(lambda: session.run(put))
        np.testing.assert_array_equal(session.run(take), [0, 1, 2, 3, 4])  # more than fit at once
        thread.join(10)
        session.run(one)
        session.run(one)
        thread, errors = in_thread(lambda: session.run(one))
        session.run(cancel)
        thread.join(10)
        assert [type(error) for error in errors] == [tf.errors.CancelledError]
        assert session.run(size) == 2


def test_a_session_that_closes_ends_all_waiting() -> None:
    queue = tf.FIFOQueue(1, tf.int32, shapes=[])
    take, size = queue.dequeue(), queue.size()
    session = tf.Session()
    session.run(size)
    thread, errors = in_thread(lambda: session.run(take))
    session.close()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(errors[0], tf.errors.CancelledError | RuntimeError)


def test_shuffling_keeps_some_elements_to_mix_until_the_end() -> None:
    queue = tf.RandomShuffleQueue(100, 10, tf.int32, shapes=[[]], seed=3)
    put, take, close = queue.enqueue_many([np.arange(50, dtype=np.int32)]), queue.dequeue_many(20), queue.close()
    rest = queue.dequeue_many(10)
    with tf.Session() as session:
        session.run(put)
        found = [*session.run(take), *session.run(take)]
        assert found != sorted(found)
        thread, errors = in_thread(lambda: found.extend(session.run(rest)))
        session.run(close)
        thread.join(10)
        assert not errors
        assert sorted(found) == list(range(50))


def test_padding_and_priorities_and_names() -> None:
    padding = tf.PaddingFIFOQueue(9, [tf.int32, tf.string], [[None], [None]])
    puts = [padding.enqueue([[1] * n, ["x"] * n]) for n in (1, 3, 2)]
    batch = padding.dequeue_many(3)
    priority = tf.PriorityQueue(9, [tf.string], [[]])
    fill = priority.enqueue_many([np.array([5, 1, 3], np.int64), ["five", "one", "three"]])
    first = priority.dequeue_many(3)
    named = tf.FIFOQueue(9, [tf.int32, tf.int32], names=["a", "b"])
    put_named, take_named = named.enqueue({"b": 2, "a": 1}), named.dequeue()
    assert batch[0].shape.as_list() == [3, None]
    with tf.Session() as session:
        for put in puts:
            session.run(put)
        numbers, texts = session.run(batch)
        np.testing.assert_array_equal(numbers, [[1, 0, 0], [1, 1, 1], [1, 1, 0]])
        assert texts.tolist()[2] == [b"x", b"x", b""]
        session.run(fill)
        assert session.run(first)[1].tolist() == [b"one", b"three", b"five"]
        session.run(put_named)
        assert session.run(take_named) == {"a": 1, "b": 2}


def test_wrong_elements_are_refused() -> None:
    queue = tf.FIFOQueue(3, [tf.int32], shapes=[[2]])
    with pytest.raises(ValueError, match="not compatible"):
        queue.enqueue([[1, 2, 3]])
    with pytest.raises(ValueError, match="2 values"):
        queue.enqueue([[1, 2], [3, 4]])
    fed = tf.placeholder(tf.int32)
    put, many = queue.enqueue([fed]), tf.FIFOQueue(3, [tf.int32]).dequeue_many(1)
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
            session.run(put, {fed: [1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="require the components to have shapes"):
            session.run(many)


def test_queue_runners_fill_until_the_input_ends() -> None:
    source, queue = tf.FIFOQueue(100, tf.int32, shapes=[]), tf.FIFOQueue(3, tf.int32, shapes=[])
    fill, end = source.enqueue_many([np.arange(20, dtype=np.int32)]), source.close()
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(source.dequeue() * 2)] * 2))
    take = queue.dequeue()
    coordinator = tf.train.Coordinator()
    found: list[Any] = []
    with tf.Session() as session:
        session.run(fill)
        session.run(end)
        threads = tf.train.start_queue_runners(session, coordinator)
        assert len(threads) == 3
        assert tf.train.start_queue_runners(session, coordinator) == []
        with pytest.raises(tf.errors.OutOfRangeError):
            found += iter(lambda: session.run(take), None)
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)
    assert sorted(found) == list(range(0, 40, 2))


def test_an_error_of_a_thread_reaches_the_training_loop() -> None:
    queue, fed = tf.FIFOQueue(3, tf.int32, shapes=[]), tf.placeholder(tf.int32, [])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(fed)]))
    take = queue.dequeue()
    with tf.Session() as session:
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(take)
        assert coordinator.should_stop()
        with pytest.raises(tf.errors.InvalidArgumentError, match="must feed a value"):
            coordinator.join(threads)


def batches(tensors: Any, *, local: bool = True) -> list[Any]:
    """All batches until the input ends."""
    found: list[Any] = []
    with tf.Session() as session:
        if local:
            session.run(tf.local_variables_initializer())
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        with pytest.raises(tf.errors.OutOfRangeError):
            found.extend(map(session.run, itertools.repeat(tensors)))
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)
    return found


def test_batches_of_slices_for_some_epochs() -> None:
    numbers, names = np.arange(5, dtype=np.float32), np.array(["a", "b", "c", "d", "e"])
    number, name = tf.train.slice_input_producer([numbers, names], num_epochs=2, shuffle=False)
    batch = tf.train.batch([number * 2.0, name], 4, allow_smaller_final_batch=True)
    assert [one.shape.as_list() for one in batch] == [[None], [None]]
    with tf.Session() as session, pytest.raises(tf.errors.FailedPreconditionError, match="epochs"):
        session.run(tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[0].enqueue_ops[0])
    found = batches(batch)
    np.testing.assert_array_equal(np.concatenate([one[0] for one in found]), np.tile(numbers, 2) * 2)
    assert [len(one[1]) for one in found] == [4, 4, 2]
    assert found[-1][1].tolist() == [b"d", b"e"]


def test_batches_have_static_shapes_and_leave_the_rest_out() -> None:
    queue = tf.train.range_input_producer(10, num_epochs=1, shuffle=True, seed=1)
    row = tf.stack([queue.dequeue()] * 2)
    batch = tf.train.shuffle_batch({"row": row}, 3, capacity=20, min_after_dequeue=5, num_threads=2)
    assert batch["row"].shape.as_list() == [3, 2]
    rows = np.concatenate([one["row"] for one in batches(batch)])
    assert len({tuple(row) for row in rows}) == 9
    with pytest.raises(ValueError, match="fully defined"):
        tf.train.batch([tf.placeholder(tf.float32, [None])], 2)
    with pytest.raises(ValueError, match="num_epochs"):
        tf.train.limit_epochs(row, 0)


def test_only_kept_examples_and_several_sources_are_batched() -> None:
    number = tf.train.range_input_producer(10, num_epochs=1, shuffle=False).dequeue()
    kept = tf.train.maybe_batch([number], tf.equal(number % 2, 0), 2)
    assert [one.tolist() for one in batches(kept)] == [[0, 2], [4, 6]]
    tf.reset_default_graph()
    rows = [tf.train.input_producer(np.full([3, 2], i, np.int32), num_epochs=1).dequeue() for i in range(2)]
    joined = tf.train.batch_join([[row] for row in rows], 2)
    assert np.concatenate(batches(joined)).sum() == 6
    tf.reset_default_graph()
    many = tf.train.batch([np.arange(6)], 2, enqueue_many=True)
    with tf.Session() as session:
        tf.train.start_queue_runners(session)
        assert session.run(many).tolist() == [0, 1]


def test_ragged_examples_are_padded_or_sparse() -> None:
    fed = tf.FIFOQueue(9, [tf.int64], shapes=None)
    puts = [fed.enqueue([np.full(n, n, np.int64)]) for n in (1, 3, 2, 0)]
    row = fed.dequeue()
    row.set_shape([None])
    batch = tf.train.batch([row], 2, dynamic_pad=True)
    assert batch.shape.as_list() == [2, None]  # of a list of one tensor, one tensor
    with tf.Session() as session:
        for put in puts:
            session.run(put)
        tf.train.start_queue_runners(session)
        assert session.run(batch).tolist() == [[1, 0, 0], [3, 3, 3]]
        assert session.run(batch).tolist() == [[2, 2], [0, 0]]


def test_a_monitored_session_starts_the_threads_and_ends_with_the_input() -> None:
    number = tf.train.range_input_producer(20, num_epochs=3).dequeue()
    batch = tf.cast(tf.train.batch([number], 5), tf.float32)
    weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    train = tf.train.GradientDescentOptimizer(0.001).minimize(tf.reduce_mean(tf.square(weight - batch)), step)
    steps = 0
    with tf.train.MonitoredTrainingSession() as session:
        while not session.should_stop():
            session.run(train)
            steps += 1
    assert steps == 12
    assert session.should_stop()
