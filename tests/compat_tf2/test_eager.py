"""Tensors, variables, tapes and functions of TensorFlow 2's face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf
from trainband.compat.tf2.eager.deferred import DEFERRED


def test_tensors_have_values_shapes_and_operators() -> None:
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    assert (x.shape.as_list(), x.dtype, len(x), x.ndim) == ([2, 2], tf.float32, 2, 2)
    np.testing.assert_array_equal((2 * x @ x + 1).numpy(), [[15, 21], [31, 45]])
    assert [float(row[1]) for row in x] == [2.0, 4.0]
    np.testing.assert_array_equal(x > 2, [[False, False], [True, True]])
    assert bool(tf.reduce_all(x == x))
    assert f"{x[0, 1]:.1f} {tf.constant(3)}" == "2.0 3"
    assert repr(tf.constant(1)) == "<tf.Tensor: shape=(), dtype=int32, numpy=1>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    assert x.ref() == x.ref()
    with pytest.raises(TypeError, match="does not match"):
        _ = x + tf.constant(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not all in"):
        tf.gather(tf.random.normal([40]), [50]).numpy()
    with pytest.raises(AttributeError, match=r"tf\.nope"):
        _ = tf.nope


def test_variables_are_assigned() -> None:
    v = tf.Variable([1.0, 2.0], name="v")
    v.assign_add([1.0, 1.0])
    assert (v + 1).numpy().tolist() == [3.0, 4.0]
    assert v.assign(v * 2) is v
    assert v.numpy().tolist() == [4.0, 6.0]
    with pytest.raises(ValueError, match="Shape mismatch"):
        v.assign([1.0])
    assert tf.Variable(3, trainable=False).dtype is tf.int32


def test_tapes_take_derivatives() -> None:
    x, v = tf.constant(3.0), tf.Variable(2.0)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = x * x * v
        first = inner.gradient(y, x)
    assert (float(first), float(outer.gradient(first, x)), float(outer.gradient(y, v))) == (12.0, 4.0, 9.0)
    with pytest.raises(RuntimeError, match="can only be used"):
        inner.gradient(y, x)
    with tf.GradientTape() as tape:
        z = v * tf.stop_gradient(v)
        with tape.stop_recording():
            unseen = v * 2
    assert float(tape.gradient(z, v)) == 2.0
    assert tape.gradient is not None
    with tf.GradientTape() as tape:
        loss = v * 1.0
    found = tape.gradient(loss, {"v": v, "unseen": unseen}, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert {name: float(one) for name, one in found.items()} == {"v": 1.0, "unseen": 0.0}
    rows = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        squares = rows * rows
    np.testing.assert_array_equal(np.squeeze(tape.jacobian(squares, rows)), [[2, 0], [0, 4]])


def test_a_script_may_give_derivatives_of_its_own() -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def clipped(x: Any) -> Any:
        return x * x, lambda upstream: upstream * 10.0

    v = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = clipped(v) * 2.0
    assert (float(y), float(tape.gradient(y, v))) == (18.0, 20.0)


@pytest.mark.smoke
def test_a_loop_is_one_program() -> None:
    w = tf.Variable(tf.zeros([3, 1]))
    x, y = tf.random.normal([32, 3]), tf.ones([32, 1])

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + 1.0 - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return float(loss)

    for _ in range(3):
        step()
    before = DEFERRED.programs_compiled, DEFERRED.programs_run
    for _ in range(10):
        step()
    assert DEFERRED.programs_compiled == before[0]
    assert DEFERRED.programs_run == before[1] + 10


def test_what_nobody_looks_at_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainband.compat.tf2.eager.deferred.MOST_PENDING", 20)
    x, v = tf.zeros([17]), tf.Variable(tf.zeros([17]))
    kept = []
    for number in range(50):
        x = x + 1.0
        kept.append(x * float(number))
    assert [float(one[0]) for one in kept] == [float(number * (number + 1)) for number in range(50)]
    before = DEFERRED.programs_compiled
    for _ in range(10):
        v.assign_add(tf.ones([17]))
    assert DEFERRED.programs_compiled <= before + 3  # not one for each length of the loop
    assert float(v[0]) == 10.0


def test_a_function_is_traced_once() -> None:
    calls: list[int] = []
    total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def add(x: Any, twice: bool = False) -> Any:
        calls.append(1)
        total.assign_add(tf.reduce_sum(x) * (2.0 if twice else 1.0))
        return {"mean": tf.reduce_mean(x), "twice": twice}

    for number in range(5):
        found = add(tf.fill([3], float(number)))
        assert (float(found["mean"]), found["twice"]) == (number, False)
    assert len(calls) == 2  # as it stands, and traced
    assert float(total) == 30.0
    add(tf.ones([3]), twice=True)
    assert float(total) == 36.0
    with tf.GradientTape() as tape:
        loss = add(tf.ones([2]))["mean"] * total
    assert float(tape.gradient(loss, total)) == 1.0


def test_a_function_that_decides_by_values_runs_as_it_stands() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def collatz(n: Any) -> Any:
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    assert [collatz(tf.constant(6)) for _ in range(3)] == [8, 8, 8]


def test_functions_check_their_signature() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])  # type: ignore[untyped-decorator]
    def total(x: Any) -> Any:
        return tf.reduce_sum(x)

    assert float(total([[1.0, 2.0]])) == 3.0
    with pytest.raises(TypeError, match="Can not cast"):
        total(tf.zeros([2, 3]))


def test_a_module_knows_its_variables() -> None:
    class Dense(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="dense")
            self.w = tf.Variable(tf.ones([2, 2]))
            self.seen = tf.Variable(0, trainable=False)

        @tf.function  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            self.seen.assign_add(1)
            return x @ self.w

    class Two(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = [Dense(), Dense()]

    model = Two()
    assert (len(model.variables), len(model.trainable_variables), len(model.submodules)) == (4, 2, 2)
    x = tf.ones([1, 2])
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.layers[1](model.layers[0](x)))
        gradients = tape.gradient(loss, model.trainable_variables)
    assert [one.numpy().tolist() for one in gradients] == [[[2, 2], [2, 2]], [[2, 2], [2, 2]]]
    assert int(model.layers[0].seen) == 3


def test_seeds_repeat_what_is_drawn() -> None:
    drawn = []
    for _ in range(2):
        tf.random.set_seed(7)
        drawn.append([tf.random.normal([3]).numpy().tolist(), tf.random.uniform([2], seed=1).numpy().tolist()])
    assert drawn[0] == drawn[1]
    assert tf.random.normal([3]).numpy().tolist() != drawn[0][0]


def test_control_flow_by_values() -> None:
    assert float(tf.cond(tf.constant(True), lambda: tf.constant(1.0), lambda: tf.constant(2.0))) == 1.0
    count, doubled = tf.while_loop(
        lambda n, _: n < 4, lambda n, x: (n + 1, x * 2.0), [tf.constant(0), tf.constant(1.0)], maximum_iterations=3
    )
    assert (int(count), float(doubled)) == (3, 8.0)

    @tf.function  # type: ignore[untyped-decorator]
    def traced(x: Any) -> Any:
        return tf.while_loop(lambda n, _: n < 5, lambda n, y: (n + 1, y + x), [tf.constant(0), x])[1]

    assert [float(traced(tf.constant(2.0))) for _ in range(3)] == [12.0] * 3
    squares = tf.map_fn(lambda x: x * x, tf.constant([1.0, 2.0, 3.0]))
    assert squares.numpy().tolist() == [1.0, 4.0, 9.0]
