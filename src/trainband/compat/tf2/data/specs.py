"""What is known of elements before there are any: `TensorSpec` and its kin, in structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf2.data.structure import along, flatten, map_structure, pack
from trainband.compat.tf2.eager.function import TensorSpec
from trainband.compat.tf2.eager.shapes import TensorShape


class DatasetSpec:
    """What is known of an element that is a dataset."""

    def __init__(self, element_spec: Any, dataset_shape: Any = ()) -> None:
        self.element_spec = element_spec
        self.shape = TensorShape(dataset_shape)
        self.dtype = as_dtype("string")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatasetSpec) and self.element_spec == other.element_spec

    def __hash__(self) -> int:
        return hash(DatasetSpec)

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r}, {self.shape!r})"


def spec_of_array(array: Any) -> Any:
    """What an array is, or the dataset that an array of objects holds."""
    if array.dtype == object and array.ndim == 0 and hasattr(array.item(), "element_spec"):
        return DatasetSpec(array.item().element_spec)
    return TensorSpec(array.shape, array.dtype)


def specs_of(types: Any, shapes: Any = None) -> Any:
    """The structure of specs for dtypes and, if given, shapes."""
    kinds = flatten(types)
    sizes = [None] * len(kinds) if shapes is None else along(types, shapes)
    return pack(types, [TensorSpec(size, kind) for kind, size in zip(kinds, sizes, strict=True)])


def with_first(count: int | None, spec: Any) -> Any:
    """The structure with one more axis in front of each tensor."""
    return map_structure(lambda one: TensorSpec(_more(count, one.shape), one.dtype), spec)


def without_first(spec: Any) -> Any:
    """The structure without the first axis of each tensor."""
    return map_structure(
        lambda one: TensorSpec(None if one.shape.sizes is None else one.shape.sizes[1:], one.dtype), spec
    )


def _more(count: int | None, shape: TensorShape) -> Any:
    return None if shape.sizes is None else [count, *shape.sizes]


def common(specs: Sequence[Any]) -> Any:
    """What structures of one form have in common.

    Raises:
      TypeError: they differ in form or dtypes.
    """
    columns = [flatten(spec) for spec in specs]
    first = columns[0]
    for place, other in enumerate(columns[1:], 1):
        if len(other) != len(first) or [one.dtype for one in other] != [one.dtype for one in first]:
            raise TypeError(
                f"Incompatible types of datasets. The element spec of dataset 0 is {specs[0]!r}, and that of dataset "
                f"{place} is {specs[place]!r}."
            )
    return pack(specs[0], [_general(alike) for alike in zip(*columns, strict=True)])


def _general(alike: Sequence[Any]) -> Any:
    if isinstance(alike[0], DatasetSpec):
        return alike[0]
    sizes = [one.shape.sizes for one in alike]
    if any(one is None or len(one) != len(sizes[0] or ()) for one in sizes):
        return TensorSpec(None, alike[0].dtype)
    shape = [same[0] if len(set(same)) == 1 else None for same in zip(*sizes, strict=True)]
    return TensorSpec(shape, alike[0].dtype)


def sizes_for(spec: Any, unknown: int) -> list[tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Shapes and dtypes that fit specs, with a number for each size that is not known.

    Returns `None` where a rank is not known, or there is text.
    """
    found = []
    for leaf in flatten(spec):
        sizes = leaf.shape.sizes
        if sizes is None or leaf.dtype.numpy.kind == "O":
            return None
        found.append((tuple(unknown if size is None else size for size in sizes), leaf.dtype.numpy))
    return found
