"""`tf.sets`: operations on sets, which are the rows of the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int32
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.sparse import dense, sparse

_Sets = dict[tuple[int, ...], set[Any]]


def set_size(a: Any, validate_indices: bool = True) -> Tensor:  # noqa: ARG001
    """How many different elements each row of a sparse tensor has."""
    given = SparseTensor.from_value(a)

    def count(*arrays: Any) -> Any:
        found = np.zeros(tuple(arrays[2][:-1]), np.int32)
        for place, one in _sets(arrays).items():
            found[place] = len(one)
        return found

    sizes = given.shape.sizes
    return dense("SetSize", count, given.parts, int32, None if sizes is None else sizes[:-1])


def set_intersection(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:  # noqa: ARG001
    """The elements that are in both sets."""
    return _combined(a, b, lambda one, other: one & other)


def set_difference(a: Any, b: Any, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:  # noqa: ARG001
    """The elements that are in the first set and not in the second, or the other way round."""
    return _combined(a, b, lambda one, other: one - other if aminusb else other - one)


def set_union(a: Any, b: Any, validate_indices: bool = True) -> SparseTensor:  # noqa: ARG001
    """The elements that are in at least one of the sets."""
    return _combined(a, b, lambda one, other: one | other)


def _combined(a: Any, b: Any, function: Callable[[set[Any], set[Any]], set[Any]]) -> SparseTensor:
    given = [one if isinstance(one, SparseTensor) else convert(one) for one in (a, b)]
    lengths = [3 if isinstance(one, SparseTensor) else 1 for one in given]
    inputs = [part for one in given for part in (one.parts if isinstance(one, SparseTensor) else [one])]

    def combine(*arrays: Any) -> tuple[Any, Any, Any]:
        left, right = arrays[: lengths[0]], arrays[lengths[0] :]
        first, second = _sets(left), _sets(right)
        outer = [(one[2] if len(one) == 3 else one[0].shape)[:-1] for one in (left, right)]
        indices, values, longest = [], [], 0
        for place in sorted(first.keys() | second.keys()):
            found = sorted(function(first.get(place, set()), second.get(place, set())))
            indices += [(*place, i) for i in range(len(found))]
            values += found
            longest = max(longest, len(found))
        shape = np.array([*np.maximum(*map(np.asarray, outer)), longest], np.int64)
        kind = left[1].dtype if lengths[0] == 3 else left[0].dtype
        return np.array(indices, np.int64).reshape(-1, len(shape)), np.array(values, kind), shape

    rank = given[0].shape.ndims
    return sparse("DenseToDenseSetOperation", combine, inputs, given[0].dtype, None if rank is None else [None] * rank)


def _sets(arrays: Sequence[Any]) -> _Sets:
    found: _Sets = {}
    if len(arrays) == 1:
        for place in np.ndindex(*arrays[0].shape[:-1]):
            found[place] = set(arrays[0][place].tolist())
        return found
    for index, value in zip(arrays[0][:, :-1].tolist(), arrays[1].tolist(), strict=True):
        found.setdefault(tuple(index), set()).add(value)
    return found
