"""Sparse tensors. The expected values are TensorFlow 2.21's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.sessions.store import LocalStore

DENSE = np.arange(12, dtype=np.float32).reshape(4, 3)


def a() -> Any:
    return tf.SparseTensor([[0, 1], [0, 3], [2, 0]], [1.0, 2.0, 3.0], [3, 4])


def b() -> Any:
    return tf.SparseTensor([[0, 1], [1, 2]], [-1.0, 5.0], [3, 4])


def numbers() -> Any:
    return tf.SparseTensor([[0, 0], [0, 1], [1, 0], [3, 0]], np.array([1, 0, 2, 2], np.int64), [4, 2])


def weights() -> Any:
    return tf.SparseTensor([[0, 0], [0, 1], [1, 0], [3, 0]], [1.0, 3.0, 0.5, 2.0], [4, 2])


def run(tensor: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(tensor, feeds)


SPARSE = [
    (
        lambda: tf.sparse_reorder(tf.SparseTensor([[2, 0], [0, 3]], [1.0, 2.0], [3, 4])),
        [[0, 3], [2, 0]],
        [2, 1],
        [3, 4],
    ),
    (lambda: tf.sparse_concat(1, [a(), b()]), [[0, 1], [0, 3], [0, 5], [1, 6], [2, 0]], [1, 2, -1, 5, 3], [3, 8]),
    (lambda: tf.sparse_retain(a(), [True, False, True]), [[0, 1], [2, 0]], [1, 3], [3, 4]),
    (lambda: tf.sparse_slice(a(), [0, 1], [2, 3]), [[0, 0], [0, 2]], [1, 2], [2, 3]),
    (lambda: tf.sparse_fill_empty_rows(a(), 7.0)[0], [[0, 1], [0, 3], [1, 0], [2, 0]], [1, 2, 7, 3], [3, 4]),
    (lambda: tf.sparse_reset_shape(b()), [[0, 1], [1, 2]], [-1, 5], [2, 3]),
    (lambda: tf.sparse_reset_shape(b(), [5, 6]), [[0, 1], [1, 2]], [-1, 5], [5, 6]),
    (lambda: tf.sparse_reshape(a(), [2, -1]), [[0, 1], [0, 3], [1, 2]], [1, 2, 3], [2, 6]),
    (lambda: tf.sparse_transpose(a()), [[0, 2], [1, 0], [3, 0]], [3, 1, 2], [4, 3]),
    (lambda: tf.sparse_add(a(), b(), thresh=0.1), [[0, 3], [1, 2], [2, 0]], [2, 5, 3], [3, 4]),
    (lambda: tf.sparse_merge(numbers(), weights(), 5), [[0, 0], [0, 1], [1, 2], [3, 2]], [3, 1, 0.5, 2], [4, 5]),
    (lambda: tf.sparse_softmax(a()), [[0, 1], [0, 3], [2, 0]], [0.26894142, 0.7310586, 1], [3, 4]),
    (
        lambda: tf.sets.set_intersection(np.array([[1, 2], [3, 4]]), np.array([[2, 5], [3, 4]])),
        [[0, 0], [1, 0], [1, 1]],
        [2, 3, 4],
        [2, 2],
    ),
]


@pytest.mark.parametrize(("make", "indices", "values", "shape"), SPARSE)
def test_operations_with_sparse_results(make: Callable[[], Any], indices: Any, values: Any, shape: Any) -> None:
    tensor = make()
    assert tensor.shape.is_compatible_with(shape)
    found = run(tensor)
    assert isinstance(found, tf.SparseTensorValue)
    assert found.indices.tolist() == indices
    np.testing.assert_allclose(found.values, values, rtol=1e-6)
    assert found.dense_shape.tolist() == shape


ROWS = {"sum": [[3, 5, 7], [6, 7, 8], [0, 0, 0], [6, 7, 8]], "mean": [[1.5, 2.5, 3.5], [6, 7, 8], [0, 0, 0], [6, 7, 8]]}
DENSE_RESULTS = [
    (lambda: tf.sparse_tensor_to_dense(a(), -1.0), [[-1, 1, -1, 2], [-1, -1, -1, -1], [3, -1, -1, -1]]),
    (lambda: tf.sparse_to_dense(2, [4], 1.0, 0.0), [0, 0, 1, 0]),
    (lambda: tf.sparse_to_dense([1, 3], [5], [1, 2], 9), [9, 1, 9, 2, 9]),
    (lambda: tf.sparse_to_dense([[0, 1], [1, 3]], [2, 4], 1.0), [[0, 1, 0, 0], [0, 0, 0, 1]]),
    (lambda: tf.sparse_reduce_sum(a()), 6),
    (lambda: tf.sparse_reduce_sum(a(), 1, keepdims=True), [[3], [0], [3]]),
    (lambda: tf.sparse_reduce_max(a(), [0]), [3, 1, 0, 2]),
    (lambda: tf.sparse_to_indicator(numbers(), 3), [[1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]),
    (lambda: tf.sparse_add(a(), np.ones([3, 4], np.float32)), [[1, 2, 1, 3], [1, 1, 1, 1], [4, 1, 1, 1]]),
    (lambda: tf.sparse_tensor_dense_matmul(a(), DENSE), [[21, 24, 27], [0, 0, 0], [0, 3, 6]]),
    (
        lambda: tf.sparse_tensor_dense_matmul(a(), DENSE[:3], adjoint_a=True),
        [[18, 21, 24], [0, 1, 2], [0, 0, 0], [0, 2, 4]],
    ),
    (lambda: tf.nn.embedding_lookup_sparse(DENSE, numbers(), None, combiner="sum"), ROWS["sum"]),
    (lambda: tf.nn.embedding_lookup_sparse(DENSE, numbers(), None), ROWS["mean"]),
    (
        lambda: tf.nn.embedding_lookup_sparse([DENSE[:2], DENSE[2:]], numbers(), weights(), "div", combiner="sqrtn"),
        [[0.9486833, 2.2135944, 3.4785054], [6, 7, 8], [0, 0, 0], [6, 7, 8]],
    ),
    (
        lambda: tf.nn.safe_embedding_lookup_sparse([DENSE], numbers(), weights(), default_id=3, combiner="sum"),
        [[3, 7, 11], [3, 3.5, 4], [9, 10, 11], [12, 14, 16]],
    ),
]


@pytest.mark.parametrize(("make", "expected"), DENSE_RESULTS)
def test_operations_with_dense_results(make: Callable[[], Any], expected: Any) -> None:
    tensor = make()
    found = run(tensor)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert tensor.shape.is_compatible_with(np.shape(expected))


def test_text_and_edit_distances() -> None:
    first = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], ["a", "b", "a"], [2, 2])
    second = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ["a", "b", "a"], [2, 2])
    dense = tf.sparse_tensor_to_dense(first, "")
    found = run([dense, tf.edit_distance(first, second), tf.edit_distance(first, second, normalize=False)])
    assert found[0].tolist() == [[b"a", b"b"], [b"a", b""]]
    assert found[1].tolist() == [1.0, 0.5]
    assert found[2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("indices", "problem"),
    [([[1, 1], [0, 3]], "out of order"), ([[1, 7]], "out of bounds"), ([[1, 1], [1, 1]], "repeated")],
)
def test_wrong_places_are_refused(indices: Any, problem: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
        run(tf.sparse_to_dense(indices, [2, 4], 1.0))


def test_feeding_compiles_once_for_sizes_that_are_alike() -> None:
    placeholder = tf.sparse_placeholder(tf.float32, [3, 4])
    table = tf.Variable(DENSE)
    product = tf.sparse_tensor_dense_matmul(placeholder, table)
    lookup = tf.nn.embedding_lookup_sparse(table, numbers(), weights())
    (gradient,) = tf.gradients(tf.reduce_sum(tf.square(product)) + tf.reduce_sum(lookup), table)
    traces = first = 0
    compute = product.op.compute

    def counted(*arguments: Any) -> Any:
        nonlocal traces
        traces += 1
        return compute(*arguments)

    product.op.compute = counted
    assert isinstance(tf.Session().store, LocalStore)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for n in (1, 2, 5):
            places = np.column_stack([np.zeros(n, np.int64), np.arange(n) % 4])
            value = tf.SparseTensorValue(places, np.ones(n, np.float32), [3, 4])
            whole, _ = session.run([product, gradient], {placeholder: value})
            np.testing.assert_allclose(whole[0], DENSE[np.arange(n) % 4].sum(0))
            np.testing.assert_allclose(whole[1:], 0)
            first = traces if n == 1 else first
        assert traces == first
        found = session.run(placeholder, {placeholder: ([[0, 1]], [2.0], [3, 4])})
        assert found.values.tolist() == [2.0]


def test_derivatives_go_through_products() -> None:
    table, factors = tf.Variable(DENSE), tf.Variable([1.0, 2.0, 3.0])
    given = a()
    product = tf.sparse_tensor_dense_matmul(tf.SparseTensor(given.indices, factors * 2.0, given.dense_shape), table)
    gradients = tf.gradients(tf.reduce_sum(tf.square(product)), [table, factors])
    rows = tf.gradients(tf.reduce_sum(tf.square(tf.nn.embedding_lookup_sparse(table, numbers(), weights()))), table)[0]
    found = run([*gradients, tf.convert_to_tensor(rows)])
    matrix = np.zeros([3, 4], np.float32)
    matrix[[0, 0, 2], [1, 3, 0]] = [2, 4, 6]
    outer = 2 * matrix @ DENSE
    np.testing.assert_allclose(found[0], matrix.T @ outer)
    np.testing.assert_allclose(found[1], 2 * (outer @ DENSE.T)[[0, 0, 2], [1, 3, 0]])
    mixing = np.zeros([4, 4], np.float32)
    mixing[[0, 0, 1, 3], [1, 0, 2, 2]] = [0.25, 0.75, 1, 1]
    np.testing.assert_allclose(found[2], mixing.T @ (2 * mixing @ DENSE))
