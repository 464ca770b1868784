"""Columns that make numbers of categories: counts, and rows of tables that are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.ops.embedding import gather_or_zero, rows_clipped
from trainband.compat.ops.feature_columns import combined_rows, counted_ids, rows_or_none
from trainband.compat.tf1.feature_columns.column import CategoricalColumn, DenseColumn, Features, Ids
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.operations.initializers import TruncatedNormal
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import get_variable
from trainband.compat.tf1.training.checkpoint_start import init_from_checkpoint
from trainband.runtime.overrides import override


def looked_up(table: Any, found: Ids, combiner: str, max_norm: float | None = None) -> Tensor:
    """Record the rows of a table for the categories of each example, combined."""
    values = recorded(gather_or_zero)(table, recorded(rows_or_none)(found.ids), name="embedding_lookup")
    if max_norm is not None:
        values = recorded(rows_clipped)(values, max_norm)
    combined: Tensor = recorded(combined_rows)(values, found.ids, found.weights, combiner)
    return combined


@dataclass(frozen=True)
class IndicatorColumn(DenseColumn):
    """How often an example has each category."""

    categorical_column: CategoricalColumn

    @property
    @override
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    @override
    def size(self) -> int:
        return self.categorical_column.buckets

    @override
    def dense(self, features: Features) -> Tensor:
        found = self.categorical_column.ids(features)
        counted: Tensor = recorded(counted_ids)(found.ids, found.weights, self.size)
        return counted


@dataclass(frozen=True)
class EmbeddingColumn(DenseColumn):
    """Rows of a table that is trained, one row for each category."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    max_norm: float | None
    trainable: bool
    shared_name: str | None = None
    """The scope of a table that several columns share."""
    ckpt_to_load_from: Any = None
    tensor_name_in_ckpt: str | None = None
    """Initial values of the table, in place of the initializer."""

    @property
    @override
    def name(self) -> str:
        kind = "embedding" if self.shared_name is None else "shared_embedding"
        return f"{self.categorical_column.name}_{kind}"

    @property
    def scope(self) -> str:
        """Where its table is."""
        return self.shared_name or self.name

    @property
    @override
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    @override
    def size(self) -> int:
        return self.dimension

    @override
    def dense(self, features: Features) -> Tensor:
        found = self.categorical_column.ids(features)
        graph, shape = get_default_graph(), [self.categorical_column.buckets, self.dimension]
        held = graph.get_collection_ref(("shared embedding", self.shared_name))
        table = held[0] if self.shared_name and held else None
        if table is None:
            table = get_variable(
                "embedding_weights",
                shape,
                initializer=self.initializer,
                trainable=self.trainable and features.trainable,
                collections=features.collections,
            )
            held.append(table)
            if self.ckpt_to_load_from is not None:
                init_from_checkpoint(self.ckpt_to_load_from, {str(self.tensor_name_in_ckpt): table})
        return looked_up(table, found, self.combiner, self.max_norm)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """How often an example has each category."""
    return IndicatorColumn(_categorical(categorical_column))


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: Any = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,  # noqa: ARG001 - it always is
) -> EmbeddingColumn:
    """Rows of a table that is trained; of an example's several categories, their `combiner`: mean, sqrtn or sum.

    Raises:
      ValueError: the dimension or the initializer is not valid, or of a checkpoint only the file or the name is given.
    """
    _check(dimension, initializer, ckpt_to_load_from, tensor_name_in_ckpt)
    first = initializer or TruncatedNormal(0.0, 1 / math.sqrt(dimension))
    return EmbeddingColumn(
        _categorical(categorical_column), dimension, combiner, first, max_norm, trainable, None, ckpt_to_load_from,
        tensor_name_in_ckpt,
    )  # fmt: skip


def shared_embedding_columns(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: Any = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
    use_safe_embedding_lookup: bool = True,  # noqa: ARG001
) -> list[EmbeddingColumn]:
    """Like `embedding_column`, for several columns with one table.

    Raises:
      ValueError: as `embedding_column`; or the columns have different numbers of categories.
    """
    _check(dimension, initializer, ckpt_to_load_from, tensor_name_in_ckpt)
    columns = [_categorical(one) for one in categorical_columns]
    if len({one.buckets for one in columns}) != 1:
        raise ValueError(
            "To use shared_embedding_column, all categorical_columns must have the same number of buckets. Given: "
            + ", ".join(f"{one.name} has {one.buckets}" for one in columns)
        )
    name = shared_embedding_collection_name or "_".join(sorted(one.name for one in columns)) + "_shared_embedding"
    first = initializer or TruncatedNormal(0.0, 1 / math.sqrt(dimension))
    return [
        EmbeddingColumn(
            one, dimension, combiner, first, max_norm, trainable, name, ckpt_to_load_from, tensor_name_in_ckpt
        )
        for one in columns
    ]


def _categorical(column: Any) -> CategoricalColumn:
    if not isinstance(column, CategoricalColumn):
        raise ValueError(f"categorical_column must be a categorical column. Given: {column}")
    return column


def _check(dimension: int, initializer: Any, checkpoint: Any, tensor_name: str | None) -> None:
    if dimension is None or dimension < 1:
        raise ValueError(f"Invalid dimension {dimension}.")
    if initializer is not None and not callable(initializer):
        raise ValueError(f"initializer must be callable if specified. Given: {initializer}")
    if (checkpoint is None) != (tensor_name is None):
        raise ValueError("Must specify both `ckpt_to_load_from` and `tensor_name_in_ckpt` or none of them.")
