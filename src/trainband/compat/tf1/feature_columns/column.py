"""What feature columns have in common, and the features that they are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from trainband.compat.ops.dtypes import DType, int64
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor, SparseTensorValue

Made = TypeVar("Made")
UNKNOWN = -1
"""In place of the number of a category: there is something, but it is in no category."""
ABSENT = -2
"""In place of the number of a category: there is nothing."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The categories of a batch: of each example up to N.

    Attributes:
      ids: their numbers, [batch, N]; negative where there is none.
      weights: of each; `None`: all are 1.
    """

    ids: Tensor
    weights: Tensor | None = None


class FeatureColumn(ABC):
    """A feature, or what is made of features."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Names the scope of its variables."""

    @property
    @abstractmethod
    def parse_example_spec(self) -> dict[str, Any]:
        """How its features are read from an Example, by key."""


class DenseColumn(FeatureColumn):
    """A column that is numbers, as many for each example."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many."""

    @abstractmethod
    def dense(self, features: Features) -> Tensor:
        """Its values, [batch, size]."""


class CategoricalColumn(FeatureColumn):
    """A column that is categories."""

    @property
    @abstractmethod
    def buckets(self) -> int:
        """How many categories there are."""

    @abstractmethod
    def ids(self, features: Features) -> Ids:
        """The categories of the examples."""


class Features:
    """The features of a batch; what several columns need of them is recorded once.

    Args:
      tensors: by key.
      weight_collections: where the variables go that columns make.
      trainable: whether those are trained.

    Raises:
      ValueError: it is no dictionary.
    """

    def __init__(self, tensors: Mapping[str, Any], weight_collections: Any = None, trainable: bool = True) -> None:
        if not isinstance(tensors, Mapping):
            raise ValueError(f"features must be a dictionary of tensors, got {tensors!r}.")
        self._tensors = tensors
        self.trainable = trainable
        """Whether the variables that columns make are trained."""
        self.collections = [*(weight_collections or ()), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
        """Where they go."""
        self._made: dict[Any, Any] = {}

    def raw(self, key: str) -> Any:
        """A feature as it was given.

        Raises:
          ValueError: there is none of this key, or it is one number.
        """
        if key not in self._tensors:
            raise ValueError(f"Feature {key} is not in features dictionary.")
        found = self._tensors[key]
        if is_sparse(found):
            return found if isinstance(found, SparseTensor) else self.once(("raw", key), lambda: SparseTensor(*found))
        tensor = convert(found)
        if tensor.shape.ndims == 0:
            raise ValueError(f"Feature (key: {key}) cannot have rank 0. Given: {tensor}")
        return tensor

    def once(self, key: Any, make: Callable[[], Made]) -> Made:
        """What `make` returns, which is called once for each key."""
        if key not in self._made:
            self._made[key] = make()
        found: Made = self._made[key]
        return found


def is_sparse(value: Any) -> bool:
    """Whether a feature is a `SparseTensor`."""
    return isinstance(value, SparseTensor | SparseTensorValue)


Numbering = Callable[[Any], Any]
"""Of values, an array of any shape, to the numbers of their categories."""


def categories(feature: Any, number: Numbering, name: str, none: int = ABSENT) -> Tensor:
    """Record the numbers of a feature's categories, [batch, N], and `none` where there is none.

    Of a dense feature, an empty text and the number -1 are none, unless that is told by another number.
    """
    if is_sparse(feature):

        def of_sparse(_: Any, indices: Any, values: Any, shape: Any) -> Sequence[Any]:
            return [spread(indices, number(values), shape, none)]

        inputs = [convert(one) for one in (feature.indices, feature.values, feature.dense_shape)]
        return record_source("Categories", of_sparse, inputs, dtypes=[int64], shapes=[[None, None]], name=name).outputs[
            0
        ]

    def of_dense(_: Any, values: Any) -> Sequence[Any]:
        matrix = values.reshape(len(values), -1)
        if none != ABSENT:
            return [number(matrix)]
        empty = matrix == (b"" if matrix.dtype == object else -1)
        return [np.where(empty, ABSENT, number(matrix))]

    shape = matrix_shape(feature)
    return record_source("Categories", of_dense, [feature], dtypes=[int64], shapes=[shape], name=name).outputs[0]


def weights_of(feature: Any, dtype: DType, name: str) -> Tensor:
    """Record the weights of a feature's categories, in the places of `categories`."""

    def of_sparse(_: Any, indices: Any, values: Any, shape: Any) -> Sequence[Any]:
        return [spread(indices, values.astype(dtype.numpy), shape, 0)]

    def of_dense(_: Any, values: Any) -> Sequence[Any]:
        return [values.reshape(len(values), -1).astype(dtype.numpy)]

    if is_sparse(feature):
        inputs = [convert(one) for one in (feature.indices, feature.values, feature.dense_shape)]
        return record_source("Weights", of_sparse, inputs, dtypes=[dtype], shapes=[[None, None]], name=name).outputs[0]
    shape = matrix_shape(feature)
    return record_source("Weights", of_dense, [feature], dtypes=[dtype], shapes=[shape], name=name).outputs[0]


def matrix_shape(feature: Tensor) -> list[int | None]:
    """The shape of a dense feature as a matrix [batch, N]."""
    sizes = feature.shape.sizes
    if sizes is None:
        return [None, None]
    width = 1
    for size in sizes[1:]:
        if size is None:
            return [sizes[0], None]
        width *= size
    return [sizes[0], width]


def spread(indices: Any, values: Any, shape: Any, empty: int) -> Any:
    """Return a sparse matrix as a dense one [batch, N], with `empty` where it has nothing.

    N is a power of two, so that not every batch is compiled anew.
    """
    rows, place = indices[:, 0], indices[:, -1] if indices.shape[1] > 1 else np.zeros(len(indices), np.int64)
    if len(shape) > 2:  # what an example has in further dimensions comes one after the other
        place = np.ravel_multi_index(tuple(indices[:, 1:].T), tuple(int(size) for size in shape[1:]))
    widest = int(place.max()) + 1 if len(place) else 1
    found = np.full((int(shape[0]), 1 << (widest - 1).bit_length()), empty, values.dtype)
    found[rows, place] = values
    return found
