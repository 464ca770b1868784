"""What operations demand of values is checked inside compiled runs, before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

INDICES = "indices are not all in"


def _embedding(optimizer: Any) -> tuple[Any, Any, Any, Any]:
    table = tf.get_variable("table", initializer=tf.constant(np.ones((4, 2), np.float32)))
    ids = tf.placeholder(tf.int32, [None])
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids)))
    step = tf.train.get_or_create_global_step()
    return table, ids, loss, optimizer.minimize(loss, global_step=step)


@pytest.mark.parametrize("name", ["GradientDescentOptimizer", "AdagradOptimizer", "AdamOptimizer"])
def test_a_step_with_an_index_out_of_range_changes_nothing(name: str) -> None:
    table, ids, loss, train = _embedding(getattr(tf.train, name)(0.1))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(tf.global_variables())
        for fetches in (train, [train, loss], [loss]):
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s){INDICES}.*embedding_lookup.*defined at"):
                session.run(fetches, {ids: [0, 4]})
        after = session.run(tf.global_variables())
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)
        session.run(train, {ids: [0, 3]})
        changed = np.any(session.run(table) != 1, axis=1)
    assert changed.tolist() == [True, False, False, True]


def test_rows_of_a_variable_are_checked() -> None:
    variable = tf.Variable(tf.zeros([3]))
    rows = tf.placeholder(tf.int32, [None])
    other = tf.Variable(0.0)
    update = tf.group(tf.scatter_add(variable, rows, tf.ones([1])), other.assign_add(1.0))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(update, {rows: [2]})
        with pytest.raises(tf.errors.InvalidArgumentError, match=INDICES):
            session.run(update, {rows: [-1]})
        assert session.run([variable, other])[0].tolist() == [0, 0, 1]
        assert session.run(other) == 1


def test_branches_and_loops_are_checked_where_they_run() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    i = tf.placeholder(tf.int32, [])
    inside = tf.cond(i < 3, lambda: tf.gather(x, i), lambda: tf.constant(-1.0))
    outside = tf.cond(i < 3, lambda: tf.constant(-1.0), lambda: tf.gather(x, i))
    _, total = tf.while_loop(lambda k, _: k < i, lambda k, s: (k + 1, s + tf.gather(x, k)), [0, 0.0])
    gradient = tf.gradients(total, x)[0]
    with tf.Session() as session:
        assert session.run([inside, total], {i: 2}) == [3.0, 3.0]
        assert session.run(tf.convert_to_tensor(gradient), {i: 2}).tolist() == [1, 1, 0]
        assert session.run(inside, {i: 7}) == -1.0
        for fetch in (outside, total):
            with pytest.raises(tf.errors.InvalidArgumentError, match=INDICES):
                session.run(fetch, {i: 7})


def test_assertions_are_checked_while_recording_and_in_runs() -> None:
    x = tf.placeholder(tf.float32, [None])
    counter = tf.Variable(0)
    with tf.control_dependencies([tf.assert_positive(x, message="too small"), tf.assert_less(x, 5.0)]):
        count = counter.assign_add(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="x == y did not hold"):
        tf.assert_equal(tf.constant(1), 2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(count, {x: [1.0]}) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="too small"):
            session.run(count, {x: [0.0, 1.0]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            session.run(count, {x: [5.0]})
        assert session.run(counter) == 1


def test_candidates_are_drawn_without_repetition_and_as_often_as_expected() -> None:
    drawn, _, counts = tf.nn.log_uniform_candidate_sampler(tf.constant([[0]], tf.int64), 1, 4, True, 10, seed=1)
    times = np.zeros(10)
    with tf.Session() as session:
        for _ in range(200):
            ids, expected = session.run([drawn, counts])
            assert len(set(ids.tolist())) == 4
            assert (expected > 0).all()
            times[ids] += 1 / expected
    np.testing.assert_allclose(times / 200, 1, atol=0.35)  # each class was drawn about as often as it was said to be


def _asserted(x: Any) -> Any:
    with tf.control_dependencies([tf.assert_positive(x)]):
        return tf.identity(x)


def _asserted_aside(x: Any) -> Any:
    tf.assert_positive(x)
    return x * 2


def _in_numpy(x: Any) -> Any:
    return tf.gather(["a", "b"], 5 * (1 - x))


CHECKS: dict[str, Callable[[Any], Any]] = {
    "check_numerics": lambda x: tf.check_numerics(1.0 / tf.cast(x, tf.float32), "bad"),
    "assert before": _asserted,
    "assert aside": _asserted_aside,
    "gather": lambda x: tf.gather([1.0, 2.0], 5 * (1 - x)),
    "gather text": _in_numpy,
    "gather and text": lambda x: (tf.as_string(x), tf.gather([1.0, 2.0], 5 * (1 - x)))[1],
    "integer division": lambda x: 6 // x,
    "in a branch": lambda x: tf.cond(x >= 0, lambda: tf.gather([1, 2], 5 * (1 - x)), lambda: 0),
    "in a loop": lambda x: tf.while_loop(lambda n: n < 5, lambda n: n + tf.gather([1, 2], 5 * (1 - x)), [x]),
    "in map_fn": lambda x: tf.map_fn(lambda n: tf.gather([1, 2], 5 * (1 - n)), tf.stack([x, 1]), tf.int32),
    "after Python": lambda x: tf.gather([1, 2], tf.py_func(lambda n: np.int32(5 * (1 - n)), [x], tf.int32)),
    "before Python": lambda x: tf.py_func(lambda n: n, [tf.gather([1, 2], 5 * (1 - x))], tf.int32),
    "shape by value": lambda x: tf.range(tf.gather([1, 2], 5 * (1 - x))),
}
"""Functions that an element of 0 makes fail, and one of 1 does not."""
USES: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda data, f: data.map(f),
    "map by threads": lambda data, f: data.map(f, num_parallel_calls=2),
    "filter": lambda data, f: data.filter(lambda x: f(x) > -100),
    "flat_map": lambda data, f: data.flat_map(lambda x: tf.data.Dataset.from_tensors(f(x))),
    "interleave": lambda data, f: data.interleave(lambda x: tf.data.Dataset.from_tensors(f(x)), cycle_length=1),
    "scan": lambda data, f: data.apply(tf.data.experimental.scan(0, lambda s, x: (s, f(x)))),
    "group_by_window": lambda data, f: data.apply(
        tf.data.experimental.group_by_window(
            lambda x: tf.cast(f(x), tf.int64), lambda _, window: window.batch(1), window_size=1
        )
    ),
}


def _taken(dataset: Any) -> list[bool]:
    """Of each element whether it comes, or an error in its place."""
    taken = dataset.make_one_shot_iterator().get_next()
    found: list[bool] = []
    with tf.Session() as session:
        while True:
            try:
                session.run(taken)
                found.append(True)
            except tf.errors.OutOfRangeError:
                return found
            except tf.errors.InvalidArgumentError:
                found.append(False)


@pytest.mark.parametrize("name", CHECKS)
def test_an_element_for_which_a_check_fails_is_an_error_in_its_place(name: str) -> None:
    data = tf.data.Dataset.from_tensor_slices([1, 1, 0, 1])
    assert _taken(data.map(CHECKS[name])) == [True, True, False, True]


@pytest.mark.parametrize("name", USES)
def test_functions_of_elements_are_checked_in_every_transformation(name: str) -> None:
    found = _taken(USES[name](tf.data.Dataset.from_tensor_slices([1, 1, 0, 1]), CHECKS["gather"]))
    assert found[:3] == [True, True, False]


def test_reduce_and_recurrence_are_checked() -> None:
    reduced = tf.data.Dataset.from_tensor_slices([1, 0]).reduce(6, lambda state, x: state // x)

    class Looking(tf.nn.rnn_cell.BasicRNNCell):  # type: ignore[misc]
        def call(self, inputs: Any, state: Any) -> Any:
            return super().call(tf.gather(inputs, [place], axis=1), state)

    place = tf.placeholder(tf.int32, [])
    cell = Looking(2)
    cell.build(tf.TensorShape([None, 1]))
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.ones([1, 2, 3]), dtype=tf.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match="Integer division by zero"):
            session.run(reduced)
        session.run(outputs, {place: 2})
        with pytest.raises(tf.errors.InvalidArgumentError, match=INDICES):
            session.run(outputs, {place: 3})
