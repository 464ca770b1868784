"""`tf.feature_column`: what columns make of features, compared with TensorFlow's."""

from __future__ import annotations

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
    (column.indicator_column(column.crossed_column([COLOUR, "tags"], 5)),
     [[2, 0, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]]),
    (column.indicator_column(column.crossed_column([RANGES, "colour"], 5)),
     [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]]),
    (column.embedding_column(ID, 2, initializer=table()), [[2, 3], [0, 1], [0, 0]]),
    (column.embedding_column(TAGS, 1, initializer=table()), [[2.5], [0.0], [3.0]]),
    (column.embedding_column(TAGS, 1, combiner="sqrtn", initializer=table()), [[3.535534], [0.0], [4.24264]]),
    (column.embedding_column(ID, 2, initializer=table(), max_norm=1.0), [[0.5547, 0.83205], [0.0, 1.0], [0.0, 0.0]]),
]  # fmt: skip


@pytest.mark.parametrize(("one", "wanted"), DENSE, ids=[f"{i}-{one.name}" for i, (one, _) in enumerate(DENSE)])
def test_a_column_as_a_matrix(one: Any, wanted: list[list[float]]) -> None:
    np.testing.assert_allclose(value(column.input_layer(features(), [one])), wanted, rtol=1e-6)


def test_columns_are_put_together_by_name_and_share_a_table() -> None:
    first, second = column.shared_embedding_columns(
        [ID, column.categorical_column_with_identity("other", 2)], 1, initializer=table()
    )
    made: dict[Any, Any] = {}
    given = {**features(), "other": tf.constant([[1], [1], [0]], tf.int64)}
    assert value(column.input_layer(given, [second, AGE, first], cols_to_vars=made)) == [
        [pytest.approx(0.15), 1.0, 1.0],
        [2.0, 0.0, 1.0],
        [7.0, 0.0, 0.0],
    ]
    (variable,) = tf.global_variables()
    assert variable.name == "input_layer/id_other_shared_embedding/embedding_weights:0"
    assert made == {first: [variable], second: [], AGE: []}


def test_a_linear_model_learns_weights_of_categories() -> None:
    weighted = column.weighted_categorical_column(TAGS, "weight")
    sums = column.linear_model(features(), [RANGES, ID, weighted], units=1)
    train = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(sums))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(sums).ravel().tolist() == [-10.75, -14.0, -14.5]
        names = {one.name: session.run(one).ravel().tolist() for one in tf.global_variables()}
    assert names == {
        "linear_model/age_bucketized/weights:0": [-1.0, -1.0, -1.0],
        "linear_model/id/weights:0": [-1.0, -1.0],
        "linear_model/tags_weighted_by_weight/weights:0": [-3.0, 0.0, -2.0, -3.5],
        "linear_model/bias_weights:0": [-3.0],
    }


def test_a_sparse_feature_may_have_any_number_of_categories() -> None:
    tags = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], ["a", "c", "a"], [3, 2])
    counts = column.input_layer({"tags": tags}, [column.indicator_column(TAGS)])
    assert value(counts) == [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]


def test_how_features_are_read_from_examples() -> None:
    spec = column.make_parse_example_spec([AGE, RANGES, column.embedding_column(TAGS, 2)])
    assert spec == {"age": tf.FixedLenFeature((1,), tf.float32), "tags": tf.VarLenFeature(tf.string)}


def test_what_columns_refuse() -> None:
    with pytest.raises(ValueError, match="wrap a categorical column"):
        column.input_layer(features(), [TAGS])
    with pytest.raises(ValueError, match="Duplicate feature column name"):
        column.linear_model(features(), [ID, ID])
    with pytest.raises(ValueError, match="not in features"):
        column.linear_model({}, [ID])
    with pytest.raises(ValueError, match="dtype must be compatible"):
        column.linear_model({"id": tf.constant(["a"])}, [ID])
    with pytest.raises(tf.errors.InvalidArgumentError, match="id has 2, but there are 2 buckets"):
        value(column.linear_model({"id": tf.constant([2], tf.int64)}, [ID]))
