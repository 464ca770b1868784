"""`tf.feature_column`: what columns make of features, compared with TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainband.compat.tf1 as tf

column = tf.feature_column


def features() -> dict[str, Any]:
    return {
        "age": tf.constant([[1.5], [20.0], [70.0]]),
        "colour": tf.constant([["red"], ["other"], [""]]),
        "tags": tf.constant([["a", "b"], ["c", ""], ["a", "a"]]),
        "id": tf.constant([1, 0, -1], tf.int64),
        "weight": tf.constant([[0.5, 2.0], [3.0, 1.0], [2.0, 1.0]]),
    }


def table(size: float = 1.0) -> Any:
    def first(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:  # noqa: ARG001
        return tf.constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * size)

    return first


def value(tensor: Any) -> Any:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(tensor).tolist()


AGE = column.numeric_column("age", normalizer_fn=lambda age: age / 10)
RANGES = column.bucketized_column(column.numeric_column("age"), [18, 30])
COLOUR = column.categorical_column_with_vocabulary_list("colour", ["red", "blue"])
TAGS = column.categorical_column_with_hash_bucket("tags", 4)
ID = column.categorical_column_with_identity("id", 2)

DENSE: list[tuple[Any, list[list[float]]]] = [
    # a column, and what TensorFlow's input_layer makes of the features
    (AGE, [[0.15], [2.0], [7.0]]),
    (RANGES, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    (column.indicator_column(COLOUR), [[1, 0], [0, 0], [0, 0]]),
    (column.indicator_column(column.categorical_column_with_vocabulary_list("colour", ["red"], num_oov_buckets=1)),
     [[1, 0], [0, 1], [0, 0]]),
    (column.indicator_column(ID), [[0, 1], [1, 0], [0, 0]]),
    (column.indicator_column(TAGS), [[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 2]]),
    (column.indicator_column(column.crossed_column([COLOUR, "tags"], 5)), [[2, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]),
    (column.indicator_column(column.crossed_column([RANGES, "colour"], 5)), [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]),
    (column.embedding_column(ID, 2, initializer=table()), [[2, 3], [0, 1], [0, 0]]),
    (column.embedding_column(TAGS, 1, initializer=table()), [[2.5], [0.0], [3.0]]),
    (column.embedding_column(TAGS, 1, combiner="sqrtn", initializer=table()), [[3.535534], [0.0], [4.24264]]),
    (column.embedding_column(ID, 2, initializer=table(), max_norm=1.0), [[0.5547, 0.83205], [0.0, 1.0], [0.0, 0.0]]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "wanted"), DENSE, ids=[f"{i}-{one.name}" for i, (one, _) in enumerate(DENSE)])
def test_a_column_as_a_matrix(one: Any, wanted: list[list[float]]) -> None:
    np.testing.assert_allclose(value(column.input_layer(features(), [one])), wanted, rtol=1e-6)
