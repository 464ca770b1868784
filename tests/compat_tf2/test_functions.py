"""`tf.function`: decisions, randomness, checks and signatures. The results are those that TensorFlow 2.21 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf


def _calls(function: Any, *arguments: Any) -> list[Any]:
    return [np.asarray(function(tf.constant(one))).tolist() for one in arguments]


def test_a_traced_function_draws_anew_in_each_call() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def draw() -> Any:
        return tf.random.normal([2]), tf.random.uniform([2], seed=1)

    found = np.array([np.stack([one.numpy() for one in draw()]) for _ in range(5)])
    assert len(np.unique(found)) == found.size

    def again() -> Any:
        tf.random.set_seed(3)
        return [draw()[0].numpy().tolist() for _ in range(2)]

    assert again() == again()


def test_a_function_follows_the_values_it_decides_by() -> None:
    lines: list[str] = []
    total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any) -> Any:
        lines.append("ran")
        if x > 0:
            total.assign_add(x)
        return total.value()

    assert _calls(step, 1.0, 2.0, -3.0, 2.0, -1.0, -1.0, 4.0) == [1.0, 3.0, 3.0, 5.0, 5.0, 5.0, 9.0]
    before = len(lines)
    assert _calls(step, 1.0, -1.0, 1.0) == [10.0, 10.0, 11.0]
    assert len(lines) == before  # both ways are traced
    assert step.experimental_get_tracing_count() == 2


def test_loops_break_continue_and_return() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def summed(n: Any) -> Any:
        found = tf.constant(0)
        for i in tf.range(n):
            if i == 3:
                continue
            if i > 5:
                break
            found += i
        return found

    assert _calls(summed, 3, 5, 10, 3, 10, 5) == [3, 7, 12, 3, 12, 7]
    assert summed.experimental_get_tracing_count() == 3

    @tf.function  # type: ignore[untyped-decorator]
    def doubled(x: Any) -> Any:
        while tf.reduce_max(x) < 100.0:
            x = x * 2.0
        return x

    assert _calls(doubled, [1.0], [3.0], [1.0], [3.0]) == [[128.0], [192.0], [128.0], [192.0]]

    @tf.function  # type: ignore[untyped-decorator]
    def stacked(n: Any) -> Any:
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(n):
            rows = rows.write(i, tf.cast(i, tf.float32) * 2.0)
        return rows.stack()

    assert _calls(stacked, 2, 2, 3) == [[0.0, 2.0], [0.0, 2.0], [0.0, 2.0, 4.0]]

    @tf.function  # type: ignore[untyped-decorator]
    def chosen(x: Any) -> Any:
        return tf.boolean_mask(x, x > 1)

    assert _calls(chosen, [1, 2, 3], [1, 2, 3], [5, 2, 3], [1, 2, 3]) == [[2, 3], [2, 3], [5, 2, 3], [2, 3]]


def test_a_function_that_decides_in_many_ways_runs_as_it_stands() -> None:
    runs: list[int] = []

    @tf.function  # type: ignore[untyped-decorator]
    def half(n: Any) -> Any:
        runs.append(1)
        return n // 2 if int(n) % 2 == 0 else n

    assert _calls(half, *range(30)) == [n // 2 if n % 2 == 0 else n for n in range(30)]
    assert half.experimental_get_tracing_count() == 0
    before = len(runs)
    half(tf.constant(4))
    assert len(runs) == before + 1


def test_a_traced_function_checks_what_it_demands() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def checked(x: Any, i: Any) -> Any:
        tf.debugging.assert_greater(x, 0.0, message="too low")
        return tf.gather(x, i)

    x = tf.ones([40])
    for _ in range(3):
        assert float(checked(x, tf.constant(1))) == 1.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="too low"):
        checked(-x, tf.constant(1)).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not all in"):
        checked(x, tf.constant(50)).numpy()


def test_what_a_function_prints_is_printed_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def said(x: Any) -> Any:
        tf.print("x is", x)
        return x

    for number in range(4):
        said(tf.constant(number))
    assert capsys.readouterr().err.splitlines() == [f"x is {number}" for number in range(4)]


def test_functions_may_make_variables_once() -> None:
    class Net(tf.Module):  # type: ignore[misc]
        w: Any = None

        @tf.function  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            if self.w is None:
                self.w = tf.Variable(2.0)
            return self.w * x

    assert _calls(Net(), 1.0, 2.0, 3.0) == [2.0, 4.0, 6.0]

    @tf.function  # type: ignore[untyped-decorator]
    def made(x: Any) -> Any:
        return tf.Variable(1.0) * x

    made(tf.constant(1.0))
    with pytest.raises(ValueError, match="singleton"):
        made(tf.constant(1.0))


def test_signatures_and_concrete_functions() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])  # type: ignore[untyped-decorator]
    def total(x: Any) -> Any:
        return tf.reduce_sum(x)

    assert float(total(x=tf.constant([1.0]))) == 1.0
    with pytest.raises(TypeError, match="Can not cast TensorSpec"):
        total(tf.constant([1]))
    concrete = total.get_concrete_function()
    assert float(concrete(tf.constant([1.0, 2.0]))) == 3.0

    @tf.function(jit_compile=True, reduce_retracing=True)  # type: ignore[untyped-decorator]
    def scaled(x: Any, by: float, *, bias: Any = None) -> Any:
        return x * by + bias

    of_two = scaled.get_concrete_function(tf.TensorSpec([2]), 3.0, bias=tf.TensorSpec([], name="b"))
    assert of_two(tf.ones([2]), b=tf.constant(1.0)).numpy().tolist() == [4.0, 4.0]
    with pytest.raises(TypeError, match="takes the tensors"):
        of_two(tf.ones([2]))
    tf.config.run_functions_eagerly(True)
    try:
        assert tf.config.functions_run_eagerly()
        assert float(total(tf.constant([2.0]))) == 2.0
    finally:
        tf.config.run_functions_eagerly(False)


def test_numbers_that_a_function_gives_are_tensors() -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def relu(x: Any) -> Any:
        return x if x > 0 else 0

    for _ in range(3):
        assert [relu(tf.constant(one)).numpy() for one in (2, -2)] == [2, 0]
