"""What a run computes in Python before its compiled part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf
from trainband.compat.tf1.graphs.hosted import record_source


def _numbers() -> tuple[Any, Any]:
    def count(resources: dict[Any, Any]) -> list[Any]:
        resources["count"] = resources.get("count", 0) + 1
        if resources["count"] > 3:
            raise tf.errors.OutOfRangeError(None, None, "the end")
        return [np.array([resources["count"], 2.0], np.float32), np.array([b"1 2", b"3 4"], object)]

    numbers, texts = record_source("Count", count, dtypes=[tf.float32, tf.string], shapes=[[None], [None]]).outputs
    return numbers, texts


def _decoded(texts: Any) -> Any:
    def decode(_: Any, values: Any) -> list[Any]:
        return [np.array([[int(one) for one in text.split()] for text in values], np.int32)]

    return record_source("Decode", decode, [texts], dtypes=[tf.int32], shapes=[[None, 2]]).outputs[0]


def test_a_source_gives_one_value_for_each_run_to_all_that_uses_it() -> None:
    numbers, texts = _numbers()
    weight = tf.Variable(3.0)
    total = weight * tf.reduce_sum(numbers) + tf.cast(tf.reduce_sum(_decoded(texts)), tf.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = session.run([numbers, total, tf.stack([texts[1], texts[0]])])
        np.testing.assert_array_equal(values[0], [1.0, 2.0])
        assert values[1] == 3.0 * 3.0 + 10.0
        assert values[2].tolist() == [b"3 4", b"1 2"]
        assert session.run(total, {numbers: [5.0]}) == 25.0  # the source is asked for its text
        assert session.run(numbers)[0] == 3.0
        with pytest.raises(tf.errors.OutOfRangeError, match="the end"):
            session.run(total)
    with tf.Session() as session:
        assert session.run(numbers)[0] == 1.0


def test_what_is_computed_may_go_back_to_python_and_is_the_same_everywhere_in_a_run() -> None:
    kept: list[Any] = []
    drawn = tf.random_uniform([])

    def keep(_: Any, value: Any) -> list[Any]:
        kept.append(value)
        return []

    with tf.Session() as session:
        _, value, twice = session.run([record_source("Keep", keep, [drawn]), drawn, drawn * 2.0])
    assert kept == [value]
    assert twice == value * 2.0


def test_text_is_bytes() -> None:
    fed = tf.placeholder(tf.string, [])
    with tf.Session() as session:
        assert session.run(tf.constant("ä")) == "ä".encode()
        assert session.run(tf.stack([fed, fed]), {fed: "x"}).tolist() == [b"x", b"x"]


def test_a_source_inside_a_branch_is_refused() -> None:
    def branch() -> Any:
        return _numbers()[0]

    chosen = tf.cond(tf.placeholder_with_default(True, []), branch, branch)
    with tf.Session() as session, pytest.raises(tf.errors.UnimplementedError, match="in a branch"):
        session.run(chosen)


def test_what_a_session_keeps_is_closed_with_it() -> None:
    class Kept:
        closed = False

        def close(self) -> None:
            self.closed = True

    kept = Kept()
    keep = record_source("Keep", lambda resources: resources.setdefault("kept", kept) and [])
    with tf.Session() as session:
        session.run(keep)
        assert not kept.closed
    assert kept.closed


def test_what_counts_counts_once_in_a_run_however_many_need_it() -> None:
    count = tf.Variable(0).count_up_to(100)
    doubled = tf.py_func(lambda value: np.int32(2 * value), [count + 0], tf.int32)
    both = tf.py_func(lambda a, b: np.array([a, b], np.int32), [doubled, count], tf.int32)
    doubled.set_shape([])
    both.set_shape([2])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [session.run(both).tolist() for _ in range(2)] == [[0, 0], [2, 1]]
        assert [part.tolist() for part in session.run([both, count])] == [[4, 2], 2]
        assert session.run(count) == 3


def test_constants_between_python_and_compiled_parts_are_there_in_every_run() -> None:
    variable = tf.Variable([1.0, 2.0])
    first = tf.py_func(lambda value: value, [variable * 2.0], tf.float32)
    first.set_shape([2])
    second = tf.py_func(
        lambda a, b: np.float32(a.sum() + b.sum()), [tf.constant([1.0]), tf.nn.softmax(first)], tf.float32
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [session.run(second).item() for _ in range(3)] == [2.0, 2.0, 2.0]
