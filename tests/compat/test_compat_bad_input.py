"""What a script does wrong gets the error that a user of TensorFlow expects, with the operation and the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

HERE = r"test_compat_bad_input\.py:\d+"


def failing(error: type[Exception], pattern: str, do: Callable[[], Any]) -> None:
    """Fails unless it does fail, with these words and a line of this file."""
    with pytest.raises(error, match=pattern) as caught:
        do()
    assert caught.match(HERE), str(caught.value)


def test_a_variable_without_a_value() -> None:
    w = tf.Variable(tf.zeros([2]), name="w")
    doubled = w * 2.0
    with tf.Session() as session:
        failing(tf.errors.FailedPreconditionError, "uninitialized value w", lambda: session.run(doubled))
        failing(tf.errors.FailedPreconditionError, "uninitialized value w", lambda: session.run(w))
        failing(tf.errors.FailedPreconditionError, "value w", lambda: session.run(tf.assign_add(w, [1.0, 1.0])))
        session.run(w.initializer)
        assert session.run(doubled).tolist() == [0.0, 0.0]


def test_a_feed_of_a_wrong_shape() -> None:
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    with tf.Session() as session:
        feed = {x: np.zeros((2, 4))}
        failing(
            ValueError,
            r"Cannot feed value of shape \(2, 4\) for Tensor 'x:0', which has shape '\(\?, 3\)'",
            lambda: session.run(x + 1, feed),
        )


@pytest.mark.parametrize(
    ("value", "error", "pattern"),
    [
        ("text", ValueError, "x:0"),
        (2**40, TypeError, "not compatible with Tensor type int32"),
        (np.array(["a"]), ValueError, "x:0"),
    ],
)
def test_a_feed_of_a_wrong_dtype(value: Any, error: type[Exception], pattern: str) -> None:
    x = tf.placeholder(tf.int32, [], name="x")
    with tf.Session() as session:
        failing(error, pattern, lambda: session.run(x + 1, {x: value}))


def test_a_tensor_cannot_be_fed_nor_something_else_be_a_key() -> None:
    x = tf.placeholder(tf.int32, [], name="x")
    with tf.Session() as session:
        failing(TypeError, "cannot be a tf.Tensor object", lambda: session.run(x, {x: tf.constant(1)}))
        failing(TypeError, "Cannot interpret feed_dict key", lambda: session.run(x, {3.5: 1}))


def test_a_placeholder_that_is_not_fed() -> None:
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    with tf.Session() as session:
        failing(
            tf.errors.InvalidArgumentError,
            r"You must feed a value for placeholder tensor 'x' with dtype float and shape \[\?,784\]",
            lambda: session.run(x + 1.0),
        )


def test_two_variables_of_one_name() -> None:
    tf.get_variable("v", [2])
    failing(ValueError, "Variable v already exists, disallowed", lambda: tf.get_variable("v", [2]))
    with tf.variable_scope("", reuse=True):
        failing(ValueError, r"specified shape \(3,\) and found shape \(2,\)", lambda: tf.get_variable("v", [3]))
        failing(ValueError, "specified dtype", lambda: tf.get_variable("v", [2], tf.float64))
        failing(ValueError, "Variable u does not exist", lambda: tf.get_variable("u", [2]))
    first, second = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="w")
    assert (first.name, second.name) == ("w:0", "w_1:0")


@pytest.mark.parametrize("device", ["/job", "/gpu:x", "nonsense", "/job:ps/tusk:1", "/device:GPU:0:1"])
def test_a_device_that_does_not_parse(device: str) -> None:
    def enter() -> None:
        with tf.device(device):
            pass

    failing(ValueError, "device spec", enter)


@pytest.mark.parametrize(
    ("device", "soft"),
    [
        ("/job:ps/task:0", False),
        ("/job:ps/task:0", True),  # soft placement is for devices, not for tasks
        ("/task:3", True),
        ("/gpu:7", False),
        ("/cpu:1", False),
    ],
)
def test_a_device_that_is_not_there(device: str, soft: bool) -> None:
    with tf.device(device):
        x = tf.constant(1.0, name="x")
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=soft)) as session:
        failing(
            tf.errors.InvalidArgumentError,
            "Cannot assign a device for operation x: Operation was explicitly assigned to",
            lambda: session.run(x),
        )


def test_soft_placement_takes_the_cpu() -> None:
    with tf.device("/gpu:7"):
        x = tf.constant(1.0)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        assert session.run(x) == 1.0


def test_a_finalized_graph() -> None:
    x = tf.constant(1.0)
    tf.get_default_graph().finalize()
    failing(RuntimeError, "Graph is finalized and cannot be modified", lambda: x + 1.0)


def test_operands_that_do_not_go_together() -> None:
    a = tf.constant(np.zeros((2, 3), np.float32))
    failing(ValueError, "MatMul cannot be applied to inputs", lambda: tf.matmul(a, a))
    failing(ValueError, "Sub cannot be applied", lambda: a - np.zeros((4,), np.float32))
    failing(TypeError, "does not match type", lambda: tf.add(a, tf.constant(1)))
    failing(ValueError, "Dimensions must be equal", lambda: tf.Variable(tf.zeros([2]), name="v").assign(tf.zeros([3])))
    with pytest.raises(TypeError, match="not allowed"):
        bool(a)


def test_no_gradients_and_no_variables() -> None:
    loss = tf.reduce_sum(tf.constant([1.0]))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    failing(ValueError, "No variables to optimize", lambda: optimizer.minimize(loss))
    tf.Variable(1.0)
    failing(ValueError, "No gradients provided", lambda: optimizer.minimize(loss))


def test_what_cannot_be_fetched() -> None:
    tf.constant(0.0)  # the run of an empty graph is another error
    with tf.Session() as session:
        failing(TypeError, "Fetch argument None|fetches", lambda: session.run(None))
        failing(TypeError, "has invalid type", lambda: session.run(3))
        failing(ValueError, "cannot be interpreted as a Tensor", lambda: session.run("nobody:0"))
        with tf.Graph().as_default():
            other = tf.constant(1.0)
        failing(ValueError, "is not an element of this graph", lambda: session.run(other))
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(tf.constant(1.0))
    failing(ValueError, "No default session", lambda: tf.constant(1.0).eval())


def test_an_assertion_and_a_number_that_is_none() -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    with tf.control_dependencies([tf.Assert(x > 0, [x])]):
        guarded = tf.identity(x)
    checked = tf.check_numerics(tf.log(x), "log of a negative number")
    with tf.Session() as session:
        assert session.run(guarded, {x: 1.0}) == 1.0
        failing(tf.errors.InvalidArgumentError, "assertion failed", lambda: session.run(guarded, {x: -1.0}))
        failing(tf.errors.InvalidArgumentError, "negative number", lambda: session.run(checked, {x: -1.0}))


def test_a_session_of_a_server_elsewhere() -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="not a server of this process"):
        tf.Session("grpc://127.0.0.1:1")


def test_shapes_that_do_not_go_together_only_when_it_runs() -> None:
    x, y = tf.placeholder(tf.float32, [None, None], name="x"), tf.placeholder(tf.float32, [None, None], name="y")
    product = tf.matmul(x, y, name="product")
    with tf.Session() as session:
        failing(
            tf.errors.InvalidArgumentError,
            r"MatMul of inputs of the shapes \(2, 3\), \(2, 3\).*\n.*node product",
            lambda: session.run(product, {x: np.zeros((2, 3)), y: np.zeros((2, 3))}),
        )
