"""What the tables of cases cannot say: draws, partitions, feeds in the middle of a graph, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
import trainband.compat.tf2 as tf2


def _run(fetches: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


def test_a_gradient_follows_a_tensor_that_is_fed_in_the_middle() -> None:
    with tf.Graph().as_default():
        x, b = tf.placeholder(tf.float32, [3, 2]), tf.constant([1.0, 2.0])
        added, multiplied, w = x + b, x * b, tf.Variable(2.0)
        middle = w * 3.0
        by_sum, by_product = (tf.gradients(tf.nn.l2_loss(one), b)[0] for one in (added, multiplied))
        fives, twos = np.full((3, 2), 5.0), np.full((3, 2), 2.0)
        np.testing.assert_array_equal(_run(by_sum, {added: fives}), [15.0, 15.0])
        np.testing.assert_array_equal(_run(by_sum, {added: fives, x: twos}), [15.0, 15.0])
        np.testing.assert_array_equal(_run(by_product, {multiplied: fives, x: twos}), [30.0, 30.0])
        assert _run(tf.gradients(middle * middle, w)[0], {middle: 1.0}) == 6.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="You must feed a value for Placeholder"):
            _run(by_product, {multiplied: fives})


def test_the_parts_of_an_identity_matrix_make_the_identity() -> None:
    with tf.Graph().as_default():
        with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
            whole = tf.get_variable("v", [4, 4], initializer=tf.initializers.identity(2.0))
        np.testing.assert_array_equal(_run(tf.convert_to_tensor(whole)), 2 * np.eye(4))


def test_random_numbers_of_16_bits_are_as_many_as_the_dtype_has() -> None:
    with tf.Graph().as_default():
        normal = tf.random_normal([100_000], dtype=tf.float16)
        cut = tf.truncated_normal([100_000], dtype=tf.float16)
        normals, inside = _run([normal, cut])
    assert len(np.unique(normals)) > 10_000
    assert 3.9 < np.abs(normals).max() < 6.0
    assert len(np.unique(inside)) > 8_000
    assert np.abs(inside).max() <= 2.0


@pytest.mark.parametrize("x", [[2, 0, 0], [2, 0, 3], [-1, 0, 1]])
def test_what_is_no_permutation_has_no_inverse(x: list[int]) -> None:
    with tf.Graph().as_default():
        given = tf.placeholder(tf.int32, [3])
        with pytest.raises(tf.errors.InvalidArgumentError, match="each number of"):
            _run(tf.invert_permutation(given), {given: x})
    with pytest.raises(tf2.errors.InvalidArgumentError, match="each number of"):
        tf2.math.invert_permutation(tf2.constant(x)).numpy()


@pytest.mark.parametrize("matrix", [[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[np.nan, 0.0], [0.0, 1.0]]])
def test_a_singular_system_is_refused(matrix: Any) -> None:
    for solve in (lambda x: tf2.linalg.solve(x, x[:, :1]), tf2.linalg.inv):
        with pytest.raises(tf2.errors.InvalidArgumentError, match="not invertible"):
            solve(tf2.constant(matrix)).numpy()


def test_an_infinite_global_norm_shows() -> None:
    clipped, norm = tf2.clip_by_global_norm([tf2.constant([3.0, np.inf]), tf2.constant([1.0, 2.0])], 1.0)
    assert norm.numpy() == np.inf
    assert np.isnan([one.numpy() for one in clipped]).all()
    whole, norm = tf2.clip_by_global_norm([tf2.constant([3.0]), None, tf2.constant([4.0])], 2.5)
    assert (norm.numpy(), whole[0].numpy(), whole[1], whole[2].numpy()) == (5.0, [1.5], None, [2.0])


def test_a_function_casts_alike_in_each_of_its_calls() -> None:
    cast = tf2.function(lambda x: (tf2.cast(x, tf2.uint8), tf2.cast(x, tf2.int32), tf2.saturate_cast(x, tf2.int32)))
    for _ in range(3):  # as it stands, traced, and compiled
        found = [one.numpy().tolist() for one in cast(tf2.constant([300.7, -1.0, 3e9]))]
        assert found == [[44, 255, 0], [300, -1, -2147483648], [300, -1, 2147483520]]


def test_a_derivative_by_a_complex_number_is_that_of_tensorflow() -> None:
    with tf2.GradientTape() as tape:
        z = tf2.constant([3 + 4j], tf2.complex64)
        tape.watch(z)
        size = tf2.abs(z)
    np.testing.assert_allclose(tape.gradient(size, z).numpy(), [0.6 + 0.8j], rtol=1e-6)
