"""Branches and loops, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainband.compat.tf1 as tf
from trainband.compat.ops.loops import KEPT


@settings(max_examples=12)
@given(rounds=st.one_of(st.integers(0, 6), st.sampled_from([KEPT - 1, KEPT, KEPT + 1, 3 * KEPT, 4 * KEPT + 5])))
def test_the_derivative_of_a_loop_of_any_number_of_rounds(rounds: int) -> None:
    """x(n+1) = a x(n) + b, whose number of rounds is known only when it runs."""
    with tf.Graph().as_default(), tf.Session() as session:
        limit = tf.placeholder(tf.int32, [])
        a, b, x = (tf.constant(value, tf.float64) for value in (0.99, 0.5, 2.0))
        _, last = tf.while_loop(lambda i, _: i < limit, lambda i, v: (i + 1, a * v + b), [0, x])
        found = session.run([last, *tf.gradients(last, [a, b, x])], {limit: rounds})
    values, by_a, by_b, by_x = [2.0], 0.0, 0.0, 1.0
    for _ in range(rounds):
        by_a = 0.99 * by_a + values[-1]
        by_b = 0.99 * by_b + 1
        by_x *= 0.99
        values.append(0.99 * values[-1] + 0.5)
    np.testing.assert_allclose(found, [values[-1], by_a, by_b, by_x], rtol=1e-9)


def test_a_loop_that_ends_by_what_it_computes_and_one_with_a_limit() -> None:
    x = tf.placeholder(tf.float32, [])
    doubled = tf.while_loop(lambda v: v < 100.0, lambda v: v * 2.0, [x])
    limited = tf.while_loop(lambda v: v < 100.0, lambda v: v * 2.0, [x], maximum_iterations=2)
    (slope,) = tf.gradients(doubled, x)
    (limited_slope,) = tf.gradients(limited, x)
    with tf.Session() as session:
        assert session.run([doubled, slope, limited, limited_slope], {x: 3.0}) == [192.0, 64.0, 12.0, 4.0]
        assert session.run([doubled, slope], {x: 200.0}) == [200.0, 1.0]


def test_a_loop_assigns_variables_and_draws_other_numbers_in_every_round() -> None:
    count = tf.Variable(0, name="count")

    def body(i: Any, total: Any) -> Any:
        with tf.control_dependencies([count.assign_add(2)]):
            return i + 1, tf.concat([total[1:], tf.random_uniform([1])], 0)

    _, drawn = tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([3])])
    with tf.Session() as session:
        session.run(count.initializer)
        values = session.run(drawn)
        assert len(set(values.tolist())) == 3
        assert session.run(count) == 6


def test_nested_structures() -> None:
    pair = tf.while_loop(
        lambda i, _: i < 3, lambda i, rest: (i + 1, {"a": rest["a"] * 2, "b": [rest["b"][0] + 1.0]}),
        (tf.constant(0), {"a": tf.constant(1), "b": [tf.constant(0.0)]}),
    )  # fmt: skip
    with tf.Session() as session:
        assert session.run(pair) == (3, {"a": 8, "b": [3.0]})


@pytest.mark.smoke
def test_a_loop_in_a_loop_and_a_branch_in_a_loop() -> None:
    x = tf.placeholder(tf.float32, [])

    def body(i: Any, v: Any) -> Any:
        inner = tf.while_loop(lambda j, _: j < i, lambda j, u: (j + 1, u * x), [0, v])[1]
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: inner + 1.0, lambda: inner)

    _, last = tf.while_loop(lambda i, _: i < 4, body, [0, tf.constant(1.0)])
    (slope,) = tf.gradients(last, x)

    def by_hand(x: float) -> float:
        v = 1.0
        for i in range(4):
            v = v * x**i + (i % 2 == 0)
        return v

    with tf.Session() as session:
        value, derivative = session.run([last, slope], {x: 1.5})
    assert value == pytest.approx(by_hand(1.5))
    assert derivative == pytest.approx((by_hand(1.501) - by_hand(1.499)) / 0.002, rel=1e-3)


def test_only_one_branch_assigns() -> None:
    v = tf.Variable(0.0, name="v")
    p = tf.placeholder(tf.bool, [])
    op = tf.cond(p, lambda: tf.assign_add(v, 1.0), lambda: tf.assign_sub(v, 10.0))
    with tf.Session() as session:
        session.run(v.initializer)
        assert [session.run(op, {p: True}), session.run(op, {p: False}), session.run(v)] == [1.0, -9.0, -9.0]


def test_case_and_group_and_tuple() -> None:
    x = tf.placeholder(tf.int32, [])
    chosen = tf.case(
        [(tf.less(x, 0), lambda: tf.constant(-1)), (tf.equal(x, 0), lambda: tf.constant(0))], lambda: x * 2
    )
    v = tf.Variable(0, name="v")
    with tf.control_dependencies([tf.group(v.assign(3), tf.no_op())]):
        after = v.read_value()
    first, second = tf.tuple([tf.constant(1), v.assign_add(1)])
    with tf.Session() as session:
        session.run(v.initializer)
        assert [session.run(chosen, {x: n}) for n in (-5, 0, 4)] == [-1, 0, 8]
        assert session.run(after) == 3
        assert session.run(first) == 1
        assert session.run(v) == 4
        assert session.run(second) == 5


def test_what_branches_and_loops_must_give() -> None:
    x = tf.constant(1.0)
    with pytest.raises(ValueError, match="same number of tensors"):
        tf.cond(x > 0, lambda: (x, x), lambda: x)
    with pytest.raises(ValueError, match="same type"):
        tf.cond(x > 0, lambda: x, lambda: tf.constant(1))
    with pytest.raises(ValueError, match="dtypes of loop_vars"):
        tf.while_loop(lambda v: v < 3.0, lambda v: tf.cast(v, tf.int32), [x])
    tf.cond(x > 0, lambda: tf.add(x, 1.0, name="inside"), lambda: x, name="branches")
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="has a value only there"):
        session.run("branches/inside:0")


def test_second_derivatives() -> None:
    x = tf.placeholder(tf.float32, [])
    (first,) = tf.gradients(x**3 + tf.sin(x), x)
    (second,) = tf.gradients(first, x)
    assert tf.gradients(tf.constant(1.0), x) == [None]
    with tf.Session() as session:
        assert session.run([first, second], {x: 2.0}) == pytest.approx([12 + np.cos(2), 12 - np.sin(2)], rel=1e-5)


def test_gradients_with_weights_and_stops() -> None:
    x = tf.constant([1.0, 2.0])
    y = x * x
    z = y * x
    with tf.Session() as session:
        assert session.run(tf.gradients(y, x, grad_ys=tf.constant([1.0, 10.0])))[0].tolist() == [2.0, 40.0]
        assert session.run(tf.gradients(z, x, stop_gradients=[y]))[0].tolist() == [1.0, 4.0]
        assert session.run(tf.gradients([y, z], [x, y]))[1].tolist() == [2.0, 3.0]
        (hessian,) = tf.hessians(tf.reduce_sum(z), x)
        assert session.run(hessian).tolist() == [[6.0, 0.0], [0.0, 12.0]]


class _Cell(tf.nn.rnn_cell.RNNCell):  # type: ignore[misc]
    """A cell that gives its input plus a number that a function makes."""

    state_size = output_size = 1

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function

    def call(self, inputs: Any, state: Any) -> Any:
        return inputs + tf.cast(self._function(), tf.float32), state


INSIDE: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "while_loop": lambda f: tf.while_loop(lambda i: i < 5, lambda _: f() + 5, [0]),
    "while_loop without rounds": lambda f: tf.while_loop(lambda i: i < 0, lambda _: f() + 5, [0]),
    "condition of while_loop": lambda f: tf.while_loop(lambda i: i + f() < 5, lambda i: i + 5, [0]),
    "taken branch": lambda f: tf.cond(tf.constant(True), f, lambda: tf.constant(1)),
    "branch in a loop": lambda f: tf.while_loop(lambda i: i < 5, lambda i: tf.cond(i < 9, f, f) + 5, [0]),
    "map_fn": lambda f: tf.map_fn(lambda x: x + f(), tf.constant([1, 2])),
    "scan": lambda f: tf.scan(lambda x, y: x + y + f(), tf.constant([1, 2])),
    "dynamic_rnn": lambda f: tf.nn.dynamic_rnn(_Cell(f), tf.ones([1, 2, 1]), dtype=tf.float32)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", INSIDE)
def test_a_control_dependency_on_what_is_outside_runs_it_once_before(name: str) -> None:
    v = tf.Variable(0, name="v", use_resource=False)
    increment = v.assign_add(1)

    def after() -> Any:
        with tf.control_dependencies([increment]):
            return v.read_value() * 0

    result = INSIDE[name](after)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(result)
        assert session.run(v) == 1


def test_an_output_of_a_branch_runs_only_its_own_effects() -> None:
    a, b, c = (tf.Variable(7, name=name) for name in "abc")
    p = tf.placeholder(tf.bool, [])

    def branch(by: int) -> list[Any]:
        shared = c.assign_add(by)
        with tf.control_dependencies([shared]):
            return [a.assign(by).op, b.assign(by).op, tf.identity(shared), tf.identity(c), tf.constant(by)]

    found = tf.cond(p, lambda: [a.assign(1).op, b.assign(2).op, tf.constant(3)], lambda: [tf.no_op()] * 2 + [4])
    together = tf.cond(p, lambda: branch(1), lambda: branch(2))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(found[2], {p: True}) == 3
        assert session.run([a, b]) == [7, 7]
        session.run(found[1], {p: True})
        assert session.run([a, b]) == [7, 2]
        session.run(found[:2], {p: True})
        assert session.run([a, b]) == [1, 2]
        assert session.run(together[2:], {p: True}) == [8, 8, 1]
        assert session.run(c) == 8


def test_branches_with_several_outputs_are_stored_and_recorded_again() -> None:
    a, b = tf.Variable(7, name="a"), tf.Variable(7, name="b")
    p = tf.placeholder(tf.bool, [], name="p")
    tf.cond(p, lambda: [a.assign(1), b.assign(2)], lambda: [a.assign(3), b.assign(4)], name="choice")
    stored = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(stored, name="")
        session.run(["a/Assign", "b/Assign"])
        assert session.run("choice/Merge_1:0", {"p:0": True}) == 2
        assert session.run(["a:0", "b:0"]) == [7, 2]
