"""Feature columns by the names and arguments that `tf.contrib.layers` gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainband.compat.ops.dtypes import float32, int64, string
from trainband.compat.tf1.feature_columns import categorical, crossed, embedding, layers, numeric
from trainband.compat.tf1.feature_columns.column import CategoricalColumn, FeatureColumn
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.input.parsing import parse_example
from trainband.compat.tf1.operations.variable_scope import variable_scope

NAMELESS = "features"
"""The key of features that are one tensor, for which columns were named ''."""


def real_valued_column(
    column_name: str, dimension: int = 1, default_value: Any = None, dtype: Any = float32, normalizer: Any = None
) -> FeatureColumn:
    """Numbers, `dimension` of them for each example."""
    return numeric.numeric_column(column_name or NAMELESS, dimension, default_value, dtype, normalizer)


def sparse_column_with_hash_bucket(
    column_name: str, hash_bucket_size: int, combiner: str | None = None, dtype: Any = string
) -> CategoricalColumn:
    """Categories by hash, in buckets."""
    _check(combiner)
    return categorical.categorical_column_with_hash_bucket(column_name, hash_bucket_size, dtype)


def sparse_column_with_integerized_feature(
    column_name: str, bucket_size: int, combiner: str | None = None, dtype: Any = int64
) -> CategoricalColumn:
    """Categories that are numbers already."""
    del dtype
    _check(combiner)
    return categorical.categorical_column_with_identity(column_name, bucket_size)


def sparse_column_with_keys(
    column_name: str, keys: Sequence[Any], default_value: int = -1, combiner: str | None = None, dtype: Any = None
) -> CategoricalColumn:
    """Categories that a list names."""
    _check(combiner)
    return categorical.categorical_column_with_vocabulary_list(column_name, keys, dtype, default_value)


def sparse_column_with_vocabulary_file(
    column_name: str,
    vocabulary_file: Any,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    combiner: str | None = None,
    dtype: Any = string,
) -> CategoricalColumn:
    """Categories that the lines of a file name."""
    _check(combiner)
    return categorical.categorical_column_with_vocabulary_file(
        column_name, vocabulary_file, vocab_size, num_oov_buckets, default_value, dtype
    )


def weighted_sparse_column(
    sparse_id_column: CategoricalColumn,
    weight_column_name: str,
    dtype: Any = float32,
    trainable: bool = True,  # noqa: ARG001 - weights of examples never were
) -> CategoricalColumn:
    """Categories with weights, which another feature has in the same places."""
    return categorical.weighted_categorical_column(sparse_id_column, weight_column_name, dtype)


def one_hot_column(sparse_id_column: CategoricalColumn) -> FeatureColumn:
    """How often an example has each category."""
    return embedding.indicator_column(sparse_id_column)


def embedding_column(sparse_id_column: CategoricalColumn, dimension: int, *args: Any, **more: Any) -> FeatureColumn:
    """Rows of a table that is trained."""
    return embedding.embedding_column(sparse_id_column, dimension, *args, **more)


def shared_embedding_columns(
    sparse_id_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    shared_embedding_name: str | None = None,
    initializer: Any = None,
    ckpt_to_load_from: Any = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Sequence[FeatureColumn]:
    """Rows of one table for several columns."""
    return embedding.shared_embedding_columns(
        sparse_id_columns, dimension, combiner, initializer, shared_embedding_name, ckpt_to_load_from,
        tensor_name_in_ckpt, max_norm, trainable,
    )  # fmt: skip


def crossed_column(
    columns: Sequence[Any],
    hash_bucket_size: int,
    combiner: str | None = None,
    ckpt_to_load_from: Any = None,
    tensor_name_in_ckpt: str | None = None,
    hash_key: int | None = None,
) -> CategoricalColumn:
    """Every combination of the categories of several columns, in buckets by hash; of hash buckets, of what is hashed.

    Raises:
      NotImplementedError: a checkpoint is given.
    """
    if ckpt_to_load_from or tensor_name_in_ckpt:
        raise NotImplementedError("crossed_column cannot begin with a checkpoint's values.")
    _check(combiner)
    keys = [one.key if isinstance(one, categorical.HashColumn) else one for one in columns]
    return crossed.crossed_column(keys, hash_bucket_size, hash_key)


def input_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    cols_to_outs: dict[Any, Any] | None = None,
) -> Tensor:
    """Return all columns as one matrix, ordered by name."""
    with variable_scope(scope, "input_from_feature_columns"):
        return layers.input_layer(
            columns_to_tensors, feature_columns, weight_collections, trainable, cols_to_output_tensors=cols_to_outs
        )


def weighted_sum_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Any,
    num_outputs: int,
    weight_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> tuple[Tensor, dict[Any, Any], Any]:
    """(the weighted sum of all columns and a bias, the variables of each column, the bias)."""
    found: dict[Any, Any] = {}
    with variable_scope(scope, "weighted_sum_from_feature_columns"):
        total = layers.linear_model(
            columns_to_tensors, feature_columns, num_outputs, "sum", weight_collections, trainable, found
        )
    return total, found, found.pop("bias")[0]


def parse_feature_columns_from_examples(
    serialized: Any, feature_columns: Any, name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """The features of columns, read from Examples."""
    from trainband.compat.tf1.feature_columns.parsing import make_parse_example_spec

    return parse_example(serialized, make_parse_example_spec(feature_columns), name, example_names)


def infer_real_valued_columns_from_input(x: Any) -> list[FeatureColumn]:
    """Columns of numbers for all features of an array, or of a dictionary of arrays."""
    arrays = x if isinstance(x, Mapping) else {NAMELESS: x}
    return [
        numeric.numeric_column(name, [int(size) for size in one.shape[1:]] or 1) for name, one in sorted(arrays.items())
    ]


def infer_real_valued_columns_from_input_fn(input_fn: Any) -> list[FeatureColumn]:
    """Columns of numbers for all features that an input function gives."""
    from trainband.compat.tf1.graphs.graph import Graph

    with Graph().as_default():
        found = input_fn()
        return infer_real_valued_columns_from_input(found[0] if isinstance(found, tuple) else found)


def _check(combiner: str | None) -> None:
    if combiner not in (None, "sum"):
        raise NotImplementedError(f"A column with combiner={combiner!r} is not supported: linear models add up.")
