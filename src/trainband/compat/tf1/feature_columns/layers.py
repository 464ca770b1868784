"""`input_layer` and `linear_model`: what feature columns give a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainband.compat.ops import activations, array, math, matrices
from trainband.compat.tf1.feature_columns.column import CategoricalColumn, DenseColumn, FeatureColumn, Features
from trainband.compat.tf1.feature_columns.embedding import EmbeddingColumn, looked_up
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.operations.initializers import Zeros
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import get_variable, variable_scope


def input_layer(
    features: Mapping[str, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
    cols_to_output_tensors: dict[Any, Any] | None = None,
) -> Tensor:
    """Return all columns as one matrix [batch, sum of sizes], ordered by name.

    Args:
      cols_to_vars, cols_to_output_tensors: get the variables and the values of each column.

    Raises:
      ValueError: a column is of categories, two have one name, or a feature is missing.
    """
    columns = [_dense(column) for column in sorted_columns(feature_columns)]
    batch = Features(features, weight_collections, trainable)
    outputs = []
    with variable_scope(None, "input_layer"):
        for column in columns:
            before = _variables()
            with variable_scope(None, _scope_of(column)):
                made = column.dense(batch)
            outputs.append(made)
            if cols_to_vars is not None:
                cols_to_vars[column] = [one for one in _variables() if one not in before]
            if cols_to_output_tensors is not None:
                cols_to_output_tensors[column] = made
        _check_batch_sizes(columns, outputs)
        concatenated: Tensor = recorded(array.concat)(outputs, 1)
        return concatenated


def linear_model(
    features: Mapping[str, Any],
    feature_columns: Any,
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
) -> Tensor:
    """Return the weighted sum of all columns and a bias, [batch, units].

    Args:
      sparse_combiner: how the weights of an example's several categories become one: sum, mean or sqrtn.
      cols_to_vars: gets the variables of each column, and of `bias`.

    Raises:
      ValueError: two columns have one name, or a feature is missing.
    """
    columns = sorted_columns(feature_columns)
    batch, sums = Features(features, weight_collections, trainable), []
    with variable_scope(None, "linear_model"):
        for column in columns:
            before = _variables()
            with variable_scope(None, _scope_of(column)):
                sums.append(_weighted(column, batch, units, sparse_combiner))
            if cols_to_vars is not None:
                cols_to_vars[column] = [one for one in _variables() if one not in before]
        bias = _variable("bias_weights", [units], batch)
        if cols_to_vars is not None:
            cols_to_vars["bias"] = list(getattr(bias, "parts", [bias]))
        _check_batch_sizes(columns, sums)
        total = recorded(math.add_n)(sums, name="weighted_sum_no_bias")
        weighted: Tensor = recorded(activations.bias_add)(total, bias, name="weighted_sum")
        return weighted


def _scope_of(column: FeatureColumn) -> str:
    return column.scope if isinstance(column, EmbeddingColumn) else column.name


def _check_batch_sizes(columns: Sequence[FeatureColumn], tensors: Sequence[Any]) -> None:
    """Raises `ValueError` where what is known of the columns' batches differs."""
    sizes = {one.shape.sizes[0]: column.name for column, one in zip(columns, tensors, strict=True) if one.shape.sizes}
    sizes.pop(None, None)
    if len(sizes) > 1:
        known = ", ".join(f"{name}: {size}" for size, name in sizes.items())
        raise ValueError(f"Batch size (first dimension) of each feature must be same. Batch size of columns: {known}")


def _weighted(column: FeatureColumn, batch: Features, units: int, combiner: str) -> Any:
    """Record a column times its weights."""
    if isinstance(column, CategoricalColumn):
        return looked_up(_variable("weights", [column.buckets, units], batch), column.ids(batch), combiner)
    if not isinstance(column, DenseColumn):
        raise ValueError(
            f"Items of feature_columns must be either a _DenseColumn or _CategoricalColumn. Given: {column}"
        )
    weights = _variable("weights", [column.size, units], batch)
    return recorded(matrices.matmul)(column.dense(batch), weights, name="weighted_sum")


def _variable(name: str, shape: list[int], batch: Features) -> Any:
    return get_variable(name, shape, initializer=Zeros(), trainable=batch.trainable, collections=batch.collections)


def sorted_columns(feature_columns: Any) -> list[FeatureColumn]:
    """Return columns by name.

    Raises:
      ValueError: there are none, something is no column, or two have one name.
    """
    if isinstance(feature_columns, FeatureColumn):
        feature_columns = [feature_columns]
    if isinstance(feature_columns, Mapping):
        raise ValueError("Expected feature_columns to be iterable, found dict.")
    columns = _listed(feature_columns)
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Duplicate feature column name found for columns: {name}.")
    return sorted(columns, key=lambda column: column.name)


def _dense(column: FeatureColumn) -> DenseColumn:
    if not isinstance(column, DenseColumn):
        raise ValueError(
            "Items of feature_columns must be a _DenseColumn. You can wrap a categorical column with an "
            f"embedding_column or indicator_column. Given: {column}"
        )
    return column


def _listed(feature_columns: Iterable[Any]) -> Sequence[FeatureColumn]:
    columns = list(feature_columns)
    if not columns:
        raise ValueError("feature_columns must not be empty.")
    for column in columns:
        if not isinstance(column, FeatureColumn):
            raise ValueError(
                f"Items of feature_columns must be a _FeatureColumn. Given (type {type(column)}): {column}."
            )
    return columns


def _variables() -> list[Any]:
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES)
