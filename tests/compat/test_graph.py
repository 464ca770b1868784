"""Graphs as TensorFlow 1 has them: names, scopes, sharing, collections, and the order of what a run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf


def test_names_are_tensorflows() -> None:
    with tf.name_scope("a"):
        first = tf.constant(1.0, name="c")
        second = tf.constant(1.0, name="c")
        with tf.name_scope("b"):
            third = tf.identity(first, name="d")
    with tf.name_scope("a"):
        again = tf.constant(1.0, name="c")
    assert [one.name for one in (first, second, third, again)] == ["a/c:0", "a/c_1:0", "a/b/d:0", "a_1/c:0"]
    graph = tf.get_default_graph()
    assert graph.get_tensor_by_name("a/b/d:0") is third
    assert graph.get_operation_by_name("a/b/d") is third.op
    with pytest.raises(KeyError, match="nobody"):
        graph.get_tensor_by_name("nobody:0")


OPERATORS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    # type of the recorded operation, what a script writes
    ("Add", lambda a, b: a + b),
    ("Sub", lambda a, b: a - b),
    ("Mul", lambda a, b: a * b),
    ("RealDiv", lambda a, b: a / b),
    ("FloorDiv", lambda a, b: a // b),
    ("FloorMod", lambda a, b: a % b),
    ("Pow", lambda a, b: a**b),
    ("MatMul", lambda a, b: a @ b),
    ("Less", lambda a, b: a < b),
    ("LessEqual", lambda a, b: a <= b),
    ("Greater", lambda a, b: a > b),
    ("GreaterEqual", lambda a, b: a >= b),
    ("LogicalAnd", lambda a, b: (a > 2) & (b > 2)),
    ("LogicalOr", lambda a, b: (a > 2) | (b > 2)),
    ("LogicalXor", lambda a, b: (a > 2) ^ (b > 2)),
    ("LogicalNot", lambda a, b: ~(a > b)),
    ("Neg", lambda a, _: -a),
    ("Abs", lambda a, _: abs(a)),
    ("StridedSlice", lambda a, _: a[0, 1:]),
]


@pytest.mark.parametrize(("type_", "apply"), OPERATORS)
def test_pythons_operators_record_operations(type_: str, apply: Callable[[Any, Any], Any]) -> None:
    a = np.array([[-7.0, 2.0], [3.0, 5.0]], np.float32)
    b = np.array([[2.0, 3.0], [4.0, 2.0]], np.float32)
    recorded = [apply(tf.constant(a), b), apply(a if type_ == "MatMul" else tf.Variable(a), tf.constant(b))]
    assert [one.op.type for one in recorded] == [type_, type_]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value in session.run(recorded):
            np.testing.assert_allclose(value, apply(a, b), rtol=1e-6)


def test_variables_and_scopes() -> None:
    with tf.variable_scope("net") as scope:
        w = tf.get_variable("w", [2, 3])
        plain = tf.Variable(tf.zeros([1]), name="plain")
        with tf.variable_scope("inner", reuse=tf.AUTO_REUSE):
            first = tf.get_variable("v", [1])
            assert tf.get_variable("v", [1]) is first
    with tf.variable_scope(scope, reuse=True):
        assert tf.get_variable("w", [2, 3]) is w
    assert [v.name for v in tf.global_variables()] == ["net/w:0", "net/plain:0", "net/inner/v:0"]
    assert plain.op.name == "net/plain"
    assert [v.name for v in tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, "net/inner")] == ["net/inner/v:0"]
    assert tf.get_variable_scope().name == ""
    with tf.variable_scope(None, "layer") as one, tf.variable_scope(None, "layer"):
        pass
    with tf.variable_scope(None, "layer") as two:
        pass
    assert (one.name, two.name) == ("layer", "layer_1")


def test_a_scope_gives_its_initializer_and_regularizer() -> None:
    with tf.variable_scope("s", initializer=tf.constant_initializer(2.0), regularizer=lambda w: tf.reduce_sum(w)):
        tf.get_variable("w", [3])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(tf.losses.get_regularization_loss()) == 6.0


def test_shapes_that_are_known_in_part() -> None:
    x = tf.placeholder(tf.float32, [None, 6, 4])
    flat = tf.reshape(x, [-1, 24])
    assert flat.shape.as_list() == [None, 24]
    assert tf.reshape(x, tf.stack([tf.shape(x)[0] * 2, 12])).shape.as_list() == [None, 12]
    assert tf.zeros(tf.stack([tf.shape(x)[0], 7])).shape.as_list() == [None, 7]
    assert tf.concat([x, x], 1).shape.as_list() == [None, 12, 4]
    assert tf.layers.dense(flat, 5).get_shape()[1].value == 5
    assert str(flat.shape) == "(?, 24)"
    unknown = tf.placeholder(tf.float32)
    assert unknown.shape.ndims is None
    assert (unknown * 2.0).shape.ndims is None
    unknown.set_shape([None, 3])
    assert (unknown * 2.0).shape.as_list() == [None, 3]
    assert int(x.shape[1]) == 6
    assert x.shape[0].value is None


def test_an_unknown_size_may_be_what_another_input_needs() -> None:
    logits = tf.placeholder(tf.float32, [None, 1])
    loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant([[1.0], [0.0]]), logits=logits)
    assert loss.shape.as_list() == [2, 1]
    with pytest.raises(ValueError, match=r"must have the same shape \(\(\?, 1\) vs \(1, 2\)\)"):
        tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant([[1.0, 0.0]]), logits=logits)


def test_a_run_reads_before_it_writes_unless_it_is_told_otherwise() -> None:
    v = tf.Variable(1.0, name="v")
    doubled = v * 2.0
    assign = v.assign(10.0)
    with tf.control_dependencies([assign]):
        after, read = tf.identity(v), v.read_value()
    with tf.Session() as session:
        session.run(v.initializer)
        assert session.run([doubled, assign]) == [2.0, 10.0]
        session.run(v.initializer)
        assert session.run([doubled, after, read]) == [2.0, 10.0, 10.0]
        session.run(v.initializer)
        # What stands for the variable itself is read at the end.
        assert session.run([v, assign]) == [10.0, 10.0]


def test_assignments_in_a_chain() -> None:
    v = tf.Variable(0, name="v")
    op = v.assign_add(1)
    for _ in range(4):
        with tf.control_dependencies([op]):
            op = v.assign_add(1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(op) == 5
        assert session.run(tf.assign_sub(v, 2)) == 3


def test_scatters() -> None:
    v = tf.Variable([1.0, 2.0, 3.0])
    with tf.Session() as session:
        session.run(v.initializer)
        assert session.run(tf.scatter_add(v, [0, 0], [1.0, 1.0])).tolist() == [3.0, 2.0, 3.0]
        assert session.run(tf.scatter_update(v, [2], [9.0])).tolist() == [3.0, 2.0, 9.0]
        assert session.run(tf.scatter_sub(v, [1, 2], [1.0, 1.0])).tolist() == [3.0, 1.0, 8.0]


def test_fetches_keep_their_form_and_any_tensor_can_be_fed() -> None:
    x = tf.constant(2.0, name="x")
    y = x * 3.0
    with tf.Session() as session:
        found = session.run({"a": [x, (y, "x:0")], "b": y.op})
        assert found == {"a": [2.0, (6.0, 2.0)], "b": None}
        assert isinstance(found["a"], list)
        assert session.run(y, {x: 5.0}) == 15.0
        assert session.run(y, {"x:0": 4.0}) == 12.0
        assert session.run([]) == []
        assert type(session.run(x)) is np.float32


def test_plain_numbers_take_the_other_sides_dtype() -> None:
    ints = tf.constant([1, 2, 3])
    assert (ints + 1).dtype == tf.int32
    assert (ints / 2).dtype == tf.float64
    assert (1 - tf.constant(0.5, tf.float64)).dtype == tf.float64
    assert tf.constant(1 << 40).dtype == tf.int64
    assert tf.argmax(tf.zeros([3, 2]), 1).dtype == tf.int64
    with tf.Session() as session:
        assert session.run(tf.constant(1 << 40) + 1) == (1 << 40) + 1
        assert session.run(tf.constant(1.0, tf.float64) / 3).dtype == np.float64


def test_two_graphs_and_nested_defaults() -> None:
    outer = tf.get_default_graph()
    with tf.Graph().as_default() as inner:
        x = tf.constant(1.0)
        with pytest.raises(AssertionError, match="nested"):
            tf.reset_default_graph()
        assert x.graph is inner
    assert tf.get_default_graph() is outer
    with pytest.raises(ValueError, match="same graph"):
        _ = tf.constant(1.0) + x


def test_partitioned_variables() -> None:
    with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(3)):
        table = tf.get_variable("table", initializer=tf.constant(np.arange(20, dtype=np.float32).reshape(10, 2)))
    assert [v.name for v in tf.global_variables()] == ["p/table/part_0:0", "p/table/part_1:0", "p/table/part_2:0"]
    assert [v.shape.as_list() for v in table] == [[4, 2], [3, 2], [3, 2]]
    rows = tf.nn.embedding_lookup(table, [0, 9, 4], partition_strategy="div")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(rows)[:, 0].tolist() == [0.0, 18.0, 8.0]
        assert session.run(table * 1.0).shape == (10, 2)
        sizes = tf.variable_axis_size_partitioner(40)(shape=tf.TensorShape([10, 2]), dtype=tf.float32)
        assert sizes == [2, 1]


def test_summaries_of_what_is_initialized() -> None:
    tf.Variable(1.0, name="a")
    b = tf.Variable(1.0, name="b")
    missing, has_b = tf.report_uninitialized_variables(), tf.is_variable_initialized(b)
    with tf.Session() as session:
        assert session.run(missing).tolist() == [b"a", b"b"]
        session.run(b.initializer)
        assert session.run([missing, has_b])[1]
        session.run(tf.global_variables_initializer())
        assert session.run(missing).size == 0


def test_a_loaded_value_and_an_initial_one() -> None:
    v = tf.Variable([1.0, 2.0])
    w = tf.Variable(v.initialized_value() * 2.0)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert w.eval().tolist() == [2.0, 4.0]
        v.load([5.0, 6.0])
        assert session.run(v).tolist() == [5.0, 6.0]


def test_what_tensorflow_0_called_otherwise() -> None:
    x = tf.constant(np.arange(8, dtype=np.float32).reshape(2, 4))
    left, right = tf.split(1, 2, x)
    with tf.Session() as session:
        session.run(tf.initialize_all_variables())
        assert session.run(tf.concat(1, [right, left])).tolist() == [[2.0, 3.0, 0.0, 1.0], [6.0, 7.0, 4.0, 5.0]]
        assert session.run(tf.pack([tf.mul(2, 3), tf.sub(5, 1), tf.neg(2)])).tolist() == [6, 4, -2]
        assert session.run(tf.reduce_sum(x, reduction_indices=[0], keep_dims=True)).shape == (1, 4)
        assert session.run(tf.select([True, False], [1, 2], [3, 4])).tolist() == [1, 4]


def test_two_optimizers_train_two_parts_of_a_graph() -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    loss = tf.square(a * b - 3.0)
    first = tf.train.AdamOptimizer(0.1).minimize(loss, var_list=[a])
    second = tf.train.AdamOptimizer(0.1).minimize(-loss, var_list=[b])
    clip = b.assign(tf.clip_by_value(b, 0.95, 2.0))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(first)
        assert session.run([a, b]) == pytest.approx([1.1, 1.0])
        session.run(second)
        assert session.run([a, b]) == pytest.approx([1.1, 0.9])
        session.run(clip)
        assert session.run([a, b]) == pytest.approx([1.1, 0.95])
        assert sum("beta1_power" in v.name for v in tf.global_variables()) == 2
