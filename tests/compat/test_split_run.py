"""Runs whose shapes depend on values: they are computed in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.graphs.lowering import Undetermined


def _run(fetches: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


def test_sizes_that_are_fed() -> None:
    n, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [None])
    rows = tf.reshape(x, [n, -1])
    state = tf.nn.rnn_cell.BasicRNNCell(2).zero_state(n, tf.float32)
    (slope,) = tf.gradients(rows * rows, x)
    with tf.Session() as session:
        for count in (2, 3, 2):
            found = session.run([rows, state, slope, tf.range(n)], {n: count, x: np.ones(6)})
            assert [one.shape for one in found] == [(count, 6 // count), (count, 2), (6,), (count,)]
            assert found[2].tolist() == [2.0] * 6
    assert rows.shape.as_list() == [None, None]


def test_sizes_that_several_operations_share() -> None:
    sizes, limit = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.float32, [])
    n = tf.placeholder(tf.int32, [])
    _, grown = tf.while_loop(
        lambda i, _: i < n,
        lambda i, array: (i + 1, array.write(i, tf.cast(i, tf.float32))),
        [0, tf.TensorArray(tf.float32, 0, dynamic_size=True)],
    )
    fetches = [tf.zeros(sizes), tf.ones(sizes), tf.zeros(sizes), tf.range(0.0, limit, 1.0), grown.stack()]
    with tf.Session() as session:
        for count in (1, 2):
            found = session.run(fetches, {sizes: [count, 2], limit: count, n: count})
            assert [one.shape for one in found] == [(count, 2)] * 3 + [(count,)] * 2


def test_a_part_that_needs_another_part() -> None:
    n, x = tf.placeholder(tf.int32, []), tf.placeholder(tf.float32, [None])
    places = tf.where(tf.exp(x) * tf.exp(tf.cast(tf.range(n), tf.float32)) > 2.0)
    rows = tf.tile(tf.reshape(tf.gather(x, places), [1, -1]), [tf.size(tf.unique(places[:, 0])[0]), 1])
    assert _run(rows, {n: 3, x: [0.0, 0.1, 0.2]}).tolist() == np.array([[0.1, 0.2]] * 2, np.float32).tolist()


def test_the_parts_of_a_run_draw_the_same_numbers() -> None:
    x = tf.random_uniform([50])
    found, all_of_them = _run([tf.boolean_mask(x, x > 0.5), x])
    assert found.tolist() == all_of_them[all_of_them > 0.5].tolist()
    assert 0 < len(found) < 50


def test_effects_happen_once() -> None:
    calls: list[float] = []

    def called(value: Any) -> Any:
        calls.append(float(value))
        return np.arange(2, dtype=np.float32)

    v = tf.Variable(1.0)
    added = tf.assign_add(v, 1.0)
    values = tf.py_func(called, [added], tf.float32)
    with tf.control_dependencies([added]):
        places = tf.where(values > 0)
    with tf.Session() as session:
        session.run(v.initializer)
        assert [one.tolist() for one in session.run([places, added, values * 2])] == [[[1]], 2.0, [0.0, 2.0]]
        assert session.run(v) == 2.0
    assert calls == [2.0]


def test_a_size_from_outside_of_a_branch_and_one_from_inside_of_a_loop() -> None:
    n = tf.placeholder(tf.int32, [])
    chosen = tf.cond(n > 1, lambda: tf.reduce_sum(tf.ones([n])), lambda: tf.reduce_sum(tf.zeros([n])))
    _, total = tf.while_loop(lambda i, _: i < n, lambda i, t: (i + 1, t + tf.reduce_sum(tf.ones([n]))), [0, 0.0])
    assert _run([chosen, total], {n: 3}) == [3.0, 9.0]
    v = tf.Variable(4)
    _, unknown = tf.while_loop(lambda i, _: i < v, lambda i, t: (i + 1, t + tf.reduce_sum(tf.ones([i]))), [1, 0.0])
    with pytest.raises(Undetermined, match="computed from values"):
        _run(unknown)


def test_what_only_a_control_dependency_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    v = tf.Variable(3.0)
    with tf.control_dependencies([v.initializer]):
        read = v.read_value()
    with tf.control_dependencies([tf.Print(read, [read], "read: ")]):
        result = read + 1.0
    with tf.control_dependencies([tf.check_numerics(read / 0.0, "not finite")]):
        refused = read + 1.0
    with tf.Session() as session:
        assert session.run(result) == 4.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            session.run(refused)
    assert capsys.readouterr().err == "read: [3.0]\n"


def test_templates_share_their_variables() -> None:
    def scaled(x: Any, by: float) -> Any:
        return x * tf.get_variable("w", [], initializer=tf.constant_initializer(by))

    template = tf.make_template("scale", scaled, by=3.0)
    first, second = template(tf.constant(1.0)), template(tf.constant(2.0))
    assert _run([first, second]) == [3.0, 6.0]
    assert [one.name for one in template.trainable_variables] == ["scale/w:0"]
    other = tf.make_template("scale", scaled, by=1.0)
    other(tf.constant(1.0))
    assert other.variable_scope_name == "scale_1"
    with pytest.raises(ValueError, match="New variable created"):
        _called_twice(tf.make_template("bad", lambda: tf.Variable(1.0)))


def _called_twice(template: Any) -> None:
    template()
    template()


@pytest.mark.parametrize(
    ("operation", "indices", "updates", "expected"),
    [
        (tf.scatter_mul, [0, 0], [2, 3], [42, 8]),
        (tf.scatter_div, [0, 1], [2, 3], [3, 2]),
        (tf.scatter_max, [0, 1], [9, 3], [9, 8]),
        (tf.scatter_min, [0, 1], [9, 3], [7, 3]),
        (tf.scatter_nd_update, [[1]], [5], [7, 5]),
        (tf.scatter_nd_add, [[1], [1]], [5, 1], [7, 14]),
        (tf.scatter_nd_sub, [[0]], [5], [2, 8]),
    ],
)
def test_rows_of_variables_are_changed(operation: Any, indices: Any, updates: Any, expected: Any) -> None:
    assert _run(operation(tf.Variable([7, 8]), indices, updates)).tolist() == expected


def test_gamma_and_poisson() -> None:
    gamma, poisson = tf.random_gamma([2000], [1.0, 4.0], 2.0, seed=1), tf.random_poisson([1.0, 8.0], [2000], seed=1)
    assert (gamma.shape.as_list(), poisson.shape.as_list()) == ([2000, 2], [2000, 2])
    found = [one.mean(0) for one in _run([gamma, poisson])]
    np.testing.assert_allclose(found[0], [0.5, 2.0], rtol=0.1)
    np.testing.assert_allclose(found[1], [1.0, 8.0], rtol=0.1)


def test_handles_of_tensors_and_staging_areas() -> None:
    x = tf.placeholder(tf.float32, [2])
    area = tf.contrib.staging.StagingArea([tf.float32], [[2]])
    put, get = area.put([x]), area.get()
    kept = tf.get_session_handle(x * 2)
    fed, again = tf.get_session_tensor(None, tf.float32)
    with tf.Session() as session:
        session.run(put, {x: [1, 2]})
        session.run(put, {x: [3, 4]})
        assert session.run([area.size(), area.peek(1)])[1].tolist() == [3, 4]
        assert session.run(get).tolist() == [1, 2]
        handle = session.run(kept, {x: [5, 6]})
        assert session.run(again + 1, {fed: handle.handle}).tolist() == [11, 13]
        assert session.run(x + 1, {x: handle}).tolist() == [11, 13]
        handle.delete()
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in the session store"):
            session.run(again, {fed: handle.handle})
