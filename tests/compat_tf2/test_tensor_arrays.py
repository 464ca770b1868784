"""Lists of tensors that loops write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2 as tf


@pytest.mark.parametrize("times", [1, 3])
def test_a_function_fills_one_in_a_loop(times: int) -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def powers(base: Any, count: Any) -> Any:
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(count):
            array = array.write(i, base ** tf.cast(i, tf.float32))
        return array.stack()

    for _ in range(times):
        np.testing.assert_allclose(powers(tf.constant(2.0), tf.constant(4)).numpy(), [1, 2, 4, 8])


def test_a_loop_carries_one_and_a_gradient_goes_through_it() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = tf.TensorArray(tf.float32, size=3).unstack(x)
        out = tf.TensorArray(tf.float32, size=3)
        _, out = tf.while_loop(
            lambda i, _: i < 3, lambda i, out: (i + 1, out.write(i, rows.read(i) ** 2)), (tf.constant(0), out)
        )
        total = tf.reduce_sum(out.stack())
    np.testing.assert_allclose(tape.gradient(total, x).numpy(), [2, 4, 6])


def test_what_it_refuses_and_what_it_fills() -> None:
    array = tf.TensorArray(tf.float32, size=2)
    with pytest.raises(tf.errors.OutOfRangeError, match="not resizeable and size is: 2"):
        array.write(2, 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="dtype is float32 but Op is trying to write dtype int32"):
        array.write(0, tf.constant(1))
    array = array.write(1, [1.0, 2.0])
    with pytest.raises(ValueError, match="Incompatible shape"):
        array.write(0, [1.0])
    np.testing.assert_allclose(array.stack().numpy(), [[0, 0], [1, 2]])
    np.testing.assert_allclose(array.concat().numpy(), [0, 0, 1, 2])
    assert int(array.split([1.0, 2.0, 3.0], [1, 2]).size()) == 2
    np.testing.assert_allclose(array.read(1).numpy(), [2, 3])
