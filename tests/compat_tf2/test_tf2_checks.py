"""What operations demand of values is checked wherever TensorFlow 2's face computes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf2
from trainband.compat.tf2.data.dataset import Dataset
from trainband.compat.tf2.eager.deferred import DEFERRED

tf: Any = trainband.compat.tf2


def _asserted(x: Any) -> Any:
    tf.debugging.assert_positive(x)
    return x


def _told(x: Any) -> Any:
    tf.debugging.Assert(x > 0, [x])
    return x


def _from_python(x: Any) -> Any:
    return tf.gather([1.0, 2.0], tf.numpy_function(lambda one: np.int64(5 * (1 - one)), [x], tf.int64))


def _chosen(x: Any) -> Any:
    return tf.cond(x >= 0, lambda: tf.gather([1, 2, 3, 4], 5 * (1 - x)), lambda: tf.constant(0))


def _counted(x: Any) -> Any:
    return tf.while_loop(lambda n: n < 5, lambda n: [n + tf.gather([1, 2, 3, 4], 5 * (1 - x))], [x])[0]


CHECKS: dict[str, Callable[[Any], Any]] = {
    "check_numerics": lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x, tf.float32), "bad"),
    "assert_positive": _asserted,
    "Assert": _told,
    "gather": lambda x: tf.gather([1.0, 2.0], 5 * (1 - x)),
    "integer division": lambda x: 6 // x,
    "empty reduction": lambda x: tf.argmax(tf.zeros([0, 2]), 0) + tf.cast(x, tf.int64),
    "in a branch": _chosen,
    "in a loop": _counted,
    "in a tf.function": tf.function(lambda x: tf.gather([1.0, 2.0], 5 * (1 - x))),
    "after Python": _from_python,
}
"""Functions that an element of 0 makes fail, and mostly one of 1 does not."""
USES: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda data, f: data.map(f),
    "map by threads": lambda data, f: data.map(f, num_parallel_calls=2),
    "filter": lambda data, f: data.filter(lambda x: tf.cast(f(x), tf.float32) > -100),
    "scan": lambda data, f: data.scan(0, lambda s, x: (s, f(x))),
    "take_while": lambda data, f: data.take_while(lambda x: tf.cast(f(x), tf.float32) > -100),
    "flat_map": lambda data, f: data.flat_map(lambda x: Dataset.from_tensors(f(x))),
    "interleave": lambda data, f: data.interleave(lambda x: Dataset.from_tensors(f(x)), cycle_length=1),
    "group_by_window": lambda data, f: data.group_by_window(
        lambda x: tf.cast(f(x), tf.int64), lambda _, window: window.batch(1), window_size=1
    ),
}


def _taken(dataset: Any) -> tuple[int, bool]:
    """How many elements come before an error, and whether there is one."""
    count = 0
    try:
        for _ in dataset:
            count += 1
    except tf.errors.InvalidArgumentError:
        return count, True
    return count, False


@pytest.mark.parametrize("name", CHECKS)
def test_an_element_for_which_a_check_fails_is_an_error_in_its_place(name: str) -> None:
    wanted = (0 if name == "empty reduction" else 3, True)
    assert _taken(Dataset.from_tensor_slices([1, 1, 1, 0, 1]).map(CHECKS[name])) == wanted


@pytest.mark.parametrize("name", USES)
def test_functions_of_elements_are_checked_in_every_transformation(name: str) -> None:
    assert _taken(USES[name](Dataset.from_tensor_slices([1, 1, 1, 0, 1]), CHECKS["gather"])) == (3, True)
    assert _taken(USES[name](Dataset.from_tensor_slices([1, 1, 1]), CHECKS["gather"])) == (3, False)


def test_reduce_is_checked() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Integer division by zero"):
        Dataset.from_tensor_slices([1, 0]).reduce(6, lambda state, x: state // x)


def test_elements_after_one_that_fails_are_taken_where_errors_are_ignored() -> None:
    for use in ("map", "map by threads", "filter"):
        good = USES[use](Dataset.from_tensor_slices([1, 0, 1, 0, 0, 1]), CHECKS["gather"])
        assert len(list(good.ignore_errors())) == 3


def _custom(x: Any) -> Any:
    return tf.custom_gradient(lambda one: (CHECKS["gather"](one), lambda slope: slope))(x)


ENCLOSED: dict[str, Callable[[Any], Any]] = {
    "branch": _chosen,
    "loop": _counted,
    "condition of a loop": lambda x: tf.while_loop(
        lambda n: n < tf.gather([1, 2, 3, 4], 5 * (1 - x)), lambda n: [n + 1], [x]
    )[0],
    "custom gradient": _custom,
    "vectorized_map": lambda x: tf.vectorized_map(CHECKS["gather"], tf.stack([x, 1]))[0],
    "map_fn": lambda x: tf.map_fn(CHECKS["gather"], tf.stack([x, 1]), tf.float32)[0],
}


@pytest.mark.parametrize("name", ENCLOSED)
def test_what_is_inside_another_function_is_checked_in_every_call_of_a_function(name: str) -> None:
    function = tf.function(ENCLOSED[name])
    for _ in range(3):
        function(tf.constant(1))
        with pytest.raises(tf.errors.InvalidArgumentError, match="are not all in"):
            np.asarray(function(tf.constant(0)))


def test_demands_are_checked_in_every_call_of_a_function() -> None:
    for name in ("check_numerics", "assert_positive", "Assert"):
        function = tf.function(CHECKS[name])
        for _ in range(3):
            function(tf.constant(1))
            with pytest.raises(tf.errors.InvalidArgumentError):
                np.asarray(function(tf.constant(0)))


def test_an_operation_that_nobody_reads_is_refused_where_it_stands() -> None:
    table, places = tf.random.normal([40, 2]), tf.constant(np.arange(30, 60))
    operations: list[Callable[[], Any]] = [
        lambda: tf.argmax(tf.zeros([0, 3]), 0),
        lambda: tf.gather(table, places),
        lambda: places // tf.zeros([30], tf.int64),
        lambda: tf.gather(table, 2 * places + 1),
        lambda: tf.function(CHECKS["gather"])(tf.constant(0)),
    ]
    for refused in operations:
        with pytest.raises(tf.errors.InvalidArgumentError):
            refused()
    assert float(tf.reduce_max(tf.constant(np.arange(30.0)))) == 29


def test_what_is_refused_later_names_the_line_of_the_script() -> None:
    table = tf.random.normal([40, 2])
    tf.gather(table, tf.cast(table[:, 0], tf.int32) + 40)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"are not all in.*test_tf2_checks\.py:{line}"):
        tf.reduce_max(tf.constant(np.arange(30.0))).numpy()
    assert float(tf.reduce_max(tf.constant(np.arange(30.0)))) == 29


def test_what_nobody_reads_until_the_script_ends_is_refused_then() -> None:
    table = tf.random.normal([40, 2])
    tf.gather(table, tf.cast(table[:, 0], tf.int32) + 40)
    with pytest.raises(tf.errors.InvalidArgumentError):
        DEFERRED.finish()
    DEFERRED.finish()
