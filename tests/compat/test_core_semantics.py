"""What graphs mean: dtypes without shapes, derivatives, threads, loops, and the order of reads and assignments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from tests.compat.operations_table import TABLE


NEED_SHAPES = ("stack_unstack", "embedding_parts")
"""How many outputs, or rows, must be known while recording."""
EQUAL_UNKNOWNS = ("conv2d_valid",)
"""Unknown sizes are taken for equal, so that a window seems to be as large as the image."""


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NEED_SHAPES])
def test_an_operation_has_its_dtype_without_a_known_shape(name: str) -> None:
    call, values = TABLE[name]
    expected = _flat(call(tf, *map(tf.constant, values)))
    for shape in (None, [None]):
        placeholders = [
            tf.placeholder(value.dtype, None if shape is None else shape * value.ndim)
            for value in map(np.asarray, values)
        ]
        found = _flat(call(tf, *placeholders))
        assert [one.dtype for one in found] == [one.dtype for one in expected]
        for mine, whole in zip(found, expected, strict=True):
            assert name in EQUAL_UNKNOWNS or mine.shape.is_compatible_with(whole.shape)


@pytest.mark.parametrize(
    ("make", "dtype", "sizes"),
    [
        (lambda x: tf.equal(x, 1.0), tf.bool, None),
        (lambda x: tf.cast(x, tf.bool), tf.bool, None),
        (lambda x: tf.argmax(x, 1), tf.int64, None),
        (lambda x: tf.shape(x), tf.int32, [None]),
        (lambda x: tf.size(x), tf.int32, []),
        (lambda x: tf.reduce_sum(x), tf.float32, []),
        (lambda x: tf.reshape(x, [-1, 3]), tf.float32, [None, 3]),
        (lambda x: tf.greater(x, tf.zeros([2, 3])), tf.bool, None),
        (lambda x: tf.fill(tf.cast(x, tf.int32), tf.constant(1, tf.int64)), tf.int64, None),
    ],
)
def test_what_is_known_without_a_rank(make: Any, dtype: Any, sizes: Any) -> None:
    found = make(tf.placeholder(tf.float32))
    assert (found.dtype, found.shape.sizes) == (dtype, None if sizes is None else tuple(sizes))


def test_unknown_sizes_that_must_be_those_of_another_operand() -> None:
    x = tf.placeholder(tf.float32, [None, None])
    assert tf.equal(x, tf.zeros([3, 4])).dtype == tf.bool
    assert tf.matmul(x, tf.zeros([3, 4])).shape.as_list() == [None, 4]
    assert tf.nn.conv2d(tf.placeholder(tf.float32, [None] * 4), tf.zeros([3, 3, 2, 5]), 1, "SAME").shape[3] == 5
    many = tf.placeholder(tf.float32, [None, None, None])
    assert tf.ones(tf.shape(many)).shape.as_list() == [None] * 3  # without any such array


def test_batch_normalization_by_a_fed_choice() -> None:
    x, training = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.bool)
    out = tf.layers.batch_normalization(x, training=training)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        data = np.array([[1.0, 2.0], [3.0, 6.0]])
        np.testing.assert_allclose(session.run(out, {x: data, training: False}), data, rtol=1e-3)
        np.testing.assert_allclose(session.run(out, {x: data, training: True}), [[-1, -1], [1, 1]], rtol=1e-3)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
