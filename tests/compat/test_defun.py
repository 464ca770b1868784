"""Functions with declared dtypes, and what takes them; switches and merges."""

from __future__ import annotations

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.operations import defun
from trainband.compat.tf1.operations.switching import merge, switch


@pytest.fixture(autouse=True)
def graph() -> None:
    tf.reset_default_graph()


def test_functions_are_called_chosen_and_repeated() -> None:
    @defun.Defun(tf.float32)
    def twice(x: tf.Tensor) -> tf.Tensor:
        return 2 * x

    @defun.Defun(tf.float32)
    def negative(x: tf.Tensor) -> tf.Tensor:
        return -x

    @defun.Defun(tf.float32, tf.float32)
    def positive(n: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return n > 0

    @defun.Defun(tf.float32, tf.float32)
    def add_up(n: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return n - 1, total + n

    @defun.Defun(tf.int32, tf.float32)
    def add(i: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        return total + tf.to_float(i)

    x = tf.placeholder(tf.float32, [])
    fetches = [
        defun.If(x > 1, [x], twice, negative)[0],
        defun.While([x, 0.0], positive, add_up)[1],
        defun.For(5, 0, -2, [x], add)[0],
        defun.Gradient([x, 3.0], twice)[0],
    ]
    with tf.Session() as session:
        assert session.run(fetches, {x: 4.0}) == [8.0, 10.0, 13.0, 6.0]
        assert session.run(fetches[0], {x: 1.0}) == -1.0
    with pytest.raises(ValueError, match="takes 1 inputs, not 2"):
        twice(x, x)


def test_a_function_has_the_derivative_that_it_names() -> None:
    @defun.Defun(tf.float32, tf.float32)
    def derivative(x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
        return 100 * slope * x

    @defun.Defun(tf.float32, grad_func=derivative)
    def cube(x: tf.Tensor) -> tf.Tensor:
        return x**3

    x = tf.placeholder(tf.float32, [])
    y = cube(x)
    with tf.Session() as session:
        assert session.run([y, *tf.gradients(y, x)], {x: 2.0}) == [8.0, 200.0]


def test_merge_gives_the_path_that_is_alive_and_its_derivative() -> None:
    x, case = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.int32, [])
    paths = [(i + 2) * switch(x, tf.equal(case, i))[1] for i in range(3)]
    merged = merge(paths)
    (slope,) = tf.gradients(merged.output, x)
    with tf.Session() as session:
        for chosen in range(3):
            value, place, by = session.run([*merged, slope], {x: [1, 5], case: chosen})
            np.testing.assert_array_equal(value, [chosen + 2, 5 * (chosen + 2)])
            assert place == chosen
            np.testing.assert_array_equal(by, [chosen + 2] * 2)


def test_a_case_that_is_exclusive_fails_if_two_conditions_hold() -> None:
    x = tf.placeholder(tf.int32, [])
    one, two = (lambda: tf.constant(1)), (lambda: tf.constant(2))
    chosen = tf.case([(x > 0, one), (x > 5, two)], default=two, exclusive=True)
    with tf.Session() as session:
        assert session.run(chosen, {x: 3}) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1 conditions"):
            session.run(chosen, {x: 6})


def test_what_a_loop_carries_may_be_sparse_with_one_shape_for_the_whole() -> None:
    x = tf.SparseTensor([[0], [3]], [2.0, 4.0], [10])
    _, found = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, s: (i + 1, tf.SparseTensor(s.indices, s.values * 2, s.dense_shape)),
        [tf.constant(0), x],
        [tf.TensorShape([]), tf.TensorShape([None])],
    )
    with tf.Session() as session:
        assert session.run(found).values.tolist() == [16.0, 32.0]


def test_no_derivative_goes_through_a_loop_without_back_prop() -> None:
    x = tf.placeholder(tf.float32, [])
    last = tf.while_loop(lambda v: v < 100.0, tf.square, [x], back_prop=False)
    with tf.Session() as session:
        assert session.run(tf.gradients(last + x, x), {x: 2.0}) == [1.0]


def test_the_results_of_map_fn_must_have_the_structure_of_dtype() -> None:
    rows = tf.constant([1.0, 2.0])
    with pytest.raises(TypeError, match="same nested structure"):
        tf.map_fn(lambda x: (x, x), rows, dtype=[tf.float32, tf.float32])
    with pytest.raises(ValueError, match="same nested structure"):
        tf.scan(lambda a, _: (a, a), rows, initializer=0.0)
