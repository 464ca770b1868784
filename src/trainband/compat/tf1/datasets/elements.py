"""Elements of a dataset: what is known of their parts, and how these are nested.

An element is a tuple of NumPy's arrays or scalars, its leaves; text is an array of bytes. A structure says how they
are nested: in tuples, dictionaries, and objects with `_nest_flatten` and `_nest_pack`. A list is no structure but a
leaf, from which a tensor is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype, int64, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.sparse import SparseTensor, SparseTensorValue

Element = tuple[Any, ...]
Elements = Iterator[Element]


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a leaf.

    Attributes:
      nested: if the leaf is a dataset, a window of another: the structure of its elements.
      value: if the leaf is the shape of a sparse tensor: what is known of it.
    """

    dtype: DType
    shape: TensorShape
    nested: Any = None
    value: tuple[int | None, ...] | None = None


class Carrier:
    """What is known of an object that carries tensors, in its place in a structure."""

    def __init__(self, like: Any, parts: Sequence[Any]) -> None:
        self._like, self._carried = like, list(parts)

    def _nest_flatten(self) -> list[Any]:
        return self._carried

    def _nest_pack(self, parts: Sequence[Any]) -> Any:
        if parts and all(isinstance(part, Tensor) for part in parts):
            return self._like._nest_pack(parts)  # noqa: SLF001 - the protocol of graphs.nest
        return Carrier(self._like, parts)

    @property
    def is_sparse(self) -> bool:
        """Whether the object is a sparse tensor: its places, its values and its shape."""
        return self._like is SparseTensor or isinstance(self._like, SparseTensor)

    def __repr__(self) -> str:
        name = getattr(self._like, "__name__", type(self._like).__name__)
        return f"{name}({', '.join(map(repr, self._carried))})"


def _parts(structure: Any) -> list[Any] | None:
    """The parts of a structure; `None` for a leaf."""
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    if isinstance(structure, tuple) and not isinstance(structure, TensorShape):
        return list(structure)
    if hasattr(structure, "_nest_flatten"):
        return list(structure._nest_flatten())  # noqa: SLF001 - the protocol of graphs.nest
    return None


def flatten(structure: Any) -> list[Any]:
    """The leaves, in order; of dictionaries, by key."""
    parts = _parts(structure)
    return [structure] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def pack(structure: Any, leaves: Sequence[Any]) -> Any:
    """Other leaves in the form of a structure."""
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    parts = _parts(structure)
    if parts is None:
        return next(leaves)
    packed = [_pack(part, leaves) for part in parts]
    if isinstance(structure, Mapping):
        found = dict(zip(sorted(structure), packed, strict=True))
        return {key: found[key] for key in structure}
    if isinstance(structure, tuple):
        return type(structure)(*packed) if hasattr(structure, "_fields") else tuple(packed)
    if all(isinstance(part, Tensor) for part in packed):
        return structure._nest_pack(packed)  # noqa: SLF001 - the protocol of graphs.nest
    return structure._nest_pack(packed) if isinstance(structure, Carrier) else Carrier(structure, packed)  # noqa: SLF001 - the protocol of graphs.nest


def along(structure: Any, other: Any) -> list[Any]:
    """The parts of something else where the leaves of a structure are: such as shapes, which may be tuples.

    Raises:
      ValueError: it has another structure.
    """
    parts = _parts(structure)
    if parts is None:
        return [other]
    if isinstance(structure, Mapping):
        if not isinstance(other, Mapping) or set(other) != set(structure):
            raise ValueError(f"The two structures don't have the same keys: {sorted(structure)}, and {other!r}.")
        others = [other[key] for key in sorted(structure)]
    else:
        others = _parts(other) or (list(other) if isinstance(other, list) else [other])
    if len(others) != len(parts):
        raise ValueError(f"The two structures don't have the same number of elements: {structure!r}, and {other!r}.")
    return [leaf for part, one in zip(parts, others, strict=True) for leaf in along(part, one)]


def specs_of(types: Any, shapes: Any = None, classes: Any = None) -> Any:
    """The structure of specs for dtypes and, if given, shapes and classes."""
    kinds = [as_dtype(one) for one in flatten(types)]
    sizes = [None] * len(kinds) if shapes is None else along(types, shapes)
    known = [Tensor] * len(kinds) if classes is None else along(types, classes)
    return pack(
        types,
        [
            sparse_specs(kind, TensorShape(size)) if one is SparseTensor else Spec(kind, TensorShape(size))
            for kind, size, one in zip(kinds, sizes, known, strict=True)
        ],
    )


def sparse_specs(dtype: DType, shape: TensorShape) -> Carrier:
    """What is known of a sparse tensor."""
    rank = shape.ndims
    return Carrier(
        SparseTensor,
        [
            Spec(int64, TensorShape([None, rank])),
            Spec(dtype, TensorShape([None])),
            Spec(int64, TensorShape([rank]), None, shape.sizes),
        ],
    )


def with_sparse_tensors(value: Any) -> Any:
    """Nested values with sparse tensors in place of their values, which are tuples."""
    if isinstance(value, SparseTensorValue):
        return SparseTensor(*value)
    if isinstance(value, Mapping):
        return {key: with_sparse_tensors(part) for key, part in value.items()}
    if type(value) is tuple:
        return tuple(map(with_sparse_tensors, value))
    return value


def sparse_places(structure: Any) -> list[int]:
    """Of each sparse tensor, which leaf is its first."""
    found: list[int] = []

    def walk(one: Any, place: int) -> int:
        parts = _parts(one)
        if parts is None:
            return place + 1
        if isinstance(one, SparseTensor) or (isinstance(one, Carrier) and one.is_sparse):
            found.append(place)
        for part in parts:
            place = walk(part, place)
        return place

    walk(structure, 0)
    return found


def mapped(change: Callable[[Spec], Spec], structure: Any) -> Any:
    """The structure with other specs."""
    return pack(structure, [change(spec) for spec in flatten(structure)])


def with_first(count: int | None, shape: TensorShape) -> TensorShape:
    """A shape with one more axis in front."""
    return TensorShape(None) if shape.sizes is None else TensorShape([count, *shape.sizes])


def without_first(shape: TensorShape) -> TensorShape:
    """A shape without its first axis."""
    return TensorShape(None) if shape.sizes is None else TensorShape(shape.sizes[1:])


def common(first: Any, second: Any) -> Any:
    """What two structures of one form have in common.

    Raises:
      TypeError: they differ in form or dtypes.
    """
    a, b = flatten(first), flatten(second)
    if len(a) != len(b) or [one.dtype for one in a] != [one.dtype for one in b]:
        raise TypeError(
            f"Two datasets have different types {shown(first, 'dtype')} and {shown(second, 'dtype')}; they must be the "
            "same."
        )
    return pack(
        first,
        [
            Spec(x.dtype, _general(x.shape, y.shape), x.nested, x.value if x.value == y.value else None)
            for x, y in zip(a, b, strict=True)
        ],
    )


def _general(a: TensorShape, b: TensorShape) -> TensorShape:
    if a.sizes is None or b.sizes is None or len(a.sizes) != len(b.sizes):
        return TensorShape(None)
    return TensorShape([x if x == y else None for x, y in zip(a.sizes, b.sizes, strict=True)])


def shown(structure: Any, attribute: str) -> Any:
    """The dtypes or shapes in a structure; a sparse tensor has one."""
    return _described(structure, lambda spec: getattr(spec, attribute), lambda specs: _of_sparse(specs, attribute))


def classes_in(structure: Any) -> Any:
    """What is in a structure: tensors and sparse tensors."""
    return _described(structure, lambda _: Tensor, lambda _: SparseTensor)


def _described(structure: Any, leaf: Callable[[Spec], Any], sparse: Callable[[Sequence[Spec]], Any]) -> Any:
    parts = _parts(structure)
    if parts is None:
        return leaf(structure)
    if isinstance(structure, Carrier) and structure.is_sparse:
        return sparse(parts)
    found = [_described(part, leaf, sparse) for part in parts]
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), found, strict=True))
        return {key: by_key[key] for key in structure}
    if isinstance(structure, tuple):
        return type(structure)(*found) if hasattr(structure, "_fields") else tuple(found)
    return Carrier(structure, found)


def _of_sparse(specs: Sequence[Spec], attribute: str) -> Any:
    _, values, shape = specs
    if attribute != "shape":
        return getattr(values, attribute)
    rank = shape.shape.sizes[0] if shape.shape.sizes else None
    return TensorShape(None if rank is None else shape.value or [None] * rank)


def text(value: Any) -> Any:
    """Text that an array of objects holds, as an array again."""
    return value if isinstance(value, np.ndarray) else boxed(value)


def boxed(value: Any) -> Any:
    """Anything as an array without axes."""
    box = np.empty((), object)
    box[()] = value
    return box


def stacked(values: Sequence[Any], spec: Spec, component: int) -> Any:
    """Several leaves as one, along a new first axis.

    Raises:
      InvalidArgumentError: they differ in shape.
    """
    first = values[0].shape
    for place, value in enumerate(values):
        if value.shape != first:
            raise InvalidArgumentError(
                None,
                None,
                f"Cannot batch tensors with different shapes in component {component}. First element had shape "
                f"{list(first)} and element {place} had shape {list(value.shape)}.",
            )
    if not first and spec.dtype != string:
        return np.array(values, spec.dtype.numpy)
    whole = np.empty((len(values), *first), spec.dtype.numpy)
    for place, value in enumerate(values):
        whole[place] = value if first or spec.dtype != string else value[()]
    return whole
