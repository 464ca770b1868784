"""TensorShape: a shape some of whose sizes, or whose rank, may not be known."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any


class Dimension:
    """One size of a shape; `value` is `None` where it is not known."""

    def __init__(self, value: Any) -> None:
        inner = value.value if isinstance(value, Dimension) else value
        self.value: int | None = None if inner is None else int(inner)
        """The size."""

    def __int__(self) -> int:
        if self.value is None:
            raise TypeError("__int__ returned non-int: this dimension is not known (None).")
        return self.value

    __index__ = __int__

    def __rtruediv__(self, other: Any) -> Dimension:
        raise TypeError(f"unsupported operand type(s) for /: '{type(other).__name__}' and 'Dimension', use // instead")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dimension):
            return self.value == other.value
        return self.value == other

    def __hash__(self) -> int:
        return hash(self.value)

    def _with(self, other: Any, result: Any) -> Dimension:
        if isinstance(other, list):
            return NotImplemented  # type: ignore[no-any-return]  # a list times a size is a longer list
        second = other.value if isinstance(other, Dimension) else other
        return Dimension(None if self.value is None or second is None else result(self.value, int(second)))

    def __add__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: a // b)

    def __mod__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: a % b)

    def __rmod__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: b % a)

    def __rfloordiv__(self, other: Any) -> Dimension:
        return self._with(other, lambda a, b: b // a)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt).truth()

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt).truth()

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le).truth()

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge).truth()

    def truth(self) -> bool | None:
        """Whether the result of a comparison is true, where it is known."""
        return None if self.value is None else bool(self.value)

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both may be the same size."""
        second = Dimension(other)
        return self.value is None or second.value is None or self.value == second.value

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises `ValueError` where both cannot be the same size."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {other} are not compatible")

    def merge_with(self, other: Any) -> Dimension:
        """What is known of a size that is both.

        Raises:
          ValueError: none is.
        """
        self.assert_is_compatible_with(other)
        return Dimension(other) if self.value is None else Dimension(self.value)

    def __reduce__(self) -> Any:
        return Dimension, (self.value,)

    def __repr__(self) -> str:
        return f"Dimension({self.value})"

    def __str__(self) -> str:
        return "?" if self.value is None else str(self.value)


Dims = tuple[int | None, ...] | None


class TensorShape:
    """A shape: sizes, each of which may be unknown, or of unknown rank altogether."""

    def __init__(self, dims: Any) -> None:
        self._dims: Dims = dims_of(dims)

    @property
    def sizes(self) -> Dims:
        """The sizes as plain numbers; `None` for an unknown rank."""
        return self._dims

    @property
    def ndims(self) -> int | None:
        """The rank."""
        return None if self._dims is None else len(self._dims)

    rank = ndims

    @property
    def dims(self) -> list[Dimension] | None:
        """The sizes as `Dimension`s."""
        return None if self._dims is None else [Dimension(size) for size in self._dims]

    def as_list(self) -> list[int | None]:
        """The sizes as a list.

        Raises:
          ValueError: the rank is not known.
        """
        if self._dims is None:
            raise ValueError("as_list() is not defined on an unknown TensorShape.")
        return list(self._dims)

    def is_fully_defined(self) -> bool:
        """Whether every size is known."""
        return self._dims is not None and None not in self._dims

    def is_compatible_with(self, other: Any) -> bool:
        """Whether some array could be of both shapes."""
        theirs = dims_of(other)
        if self._dims is None or theirs is None:
            return True
        return len(self._dims) == len(theirs) and all(
            a is None or b is None or a == b for a, b in zip(self._dims, theirs, strict=True)
        )

    def merge_with(self, other: Any) -> TensorShape:
        """What is known of an array that is of both shapes.

        Raises:
          ValueError: none can be.
        """
        theirs = dims_of(other)
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are not compatible")
        if self._dims is None or theirs is None:
            return type(self)(theirs if self._dims is None else self._dims)
        return type(self)([b if a is None else a for a, b in zip(self._dims, theirs, strict=True)])

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises `ValueError` where no array is of both shapes."""
        self.merge_with(other)

    def num_elements(self) -> int | None:
        """How many elements, where that is known."""
        if self._dims is None:
            return None
        count = 1
        for size in self._dims:
            if size is None:
                return None
            count *= size
        return count

    def concatenate(self, other: Any) -> TensorShape:
        """Its sizes and then the other's."""
        theirs = dims_of(other)
        return type(self)(None if self._dims is None or theirs is None else [*self._dims, *theirs])

    def with_rank(self, rank: int) -> TensorShape:
        """Itself, which has that rank.

        Raises:
          ValueError: it has another.
        """
        if self._dims is None:
            return type(self)([None] * rank)
        if len(self._dims) != rank:
            raise ValueError(f"Shape {self} must have rank {rank}")
        return self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Itself, which has that rank or more.

        Raises:
          ValueError: it has less.
        """
        if self._dims is not None and len(self._dims) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """Itself, which has that rank or less.

        Raises:
          ValueError: it has more.
        """
        if self._dims is not None and len(self._dims) > rank:
            raise ValueError(f"Shape {self} must have rank at most {rank}")
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raises `ValueError` where it has another rank."""
        self.with_rank(rank)

    def assert_same_rank(self, other: Any) -> None:
        """Raises `ValueError` where the other has another rank."""
        theirs = dims_of(other)
        if self._dims is not None and theirs is not None and len(self._dims) != len(theirs):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} must have the same rank")

    def assert_is_fully_defined(self) -> None:
        """Raises `ValueError` where a size is not known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """What holds for arrays of either shape."""
        theirs = dims_of(other)
        if self._dims is None or theirs is None or len(self._dims) != len(theirs):
            return type(self)(None)
        return type(self)([a if a == b else None for a, b in zip(self._dims, theirs, strict=True)])

    def as_proto(self) -> Any:
        """It as a message."""
        from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

        if self._dims is None:
            return TensorShapeProto(unknown_rank=True)
        return TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1 if one is None else one) for one in self._dims])

    def __reduce__(self) -> Any:
        return TensorShape, (self.dims,)

    def __len__(self) -> int:
        if self._dims is None:
            raise ValueError("Cannot take the length of shape with unknown rank.")
        return len(self._dims)

    def __bool__(self) -> bool:
        return self._dims is not None

    def __iter__(self) -> Iterator[Dimension]:
        if self._dims is None:
            raise ValueError("Cannot iterate over a shape with unknown rank.")
        return iter([Dimension(size) for size in self._dims])

    def __getitem__(self, key: Any) -> Any:
        if self._dims is None:
            return TensorShape(None) if isinstance(key, slice) else Dimension(None)
        return TensorShape(self._dims[key]) if isinstance(key, slice) else Dimension(self._dims[key])

    def __eq__(self, other: object) -> bool:
        try:
            return self._dims == dims_of(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return f"TensorShape({None if self._dims is None else list(self._dims)})"

    def __str__(self) -> str:
        if self._dims is None:
            return "<unknown>"
        inner = ", ".join("?" if size is None else str(size) for size in self._dims)
        return f"({inner},)" if len(self._dims) == 1 else f"({inner})"


def as_dimension(value: Any) -> Dimension:
    """A size as a `Dimension`."""
    return value if isinstance(value, Dimension) else Dimension(value)


def as_shape(shape: Any) -> TensorShape:
    """Whatever stands for a shape as a `TensorShape`."""
    return shape if isinstance(shape, TensorShape) else TensorShape(shape)


def unknown_shape(ndims: int | None = None, rank: int | None = None) -> TensorShape:
    """A shape of unknown sizes, and perhaps of unknown rank."""
    count = ndims if rank is None else rank
    return TensorShape(None if count is None else [None] * count)


def scalar() -> TensorShape:
    """The shape of a single number."""
    return TensorShape([])


def vector(length: Any) -> TensorShape:
    """The shape of a vector."""
    return TensorShape([length])


def matrix(rows: Any, cols: Any) -> TensorShape:
    """The shape of a matrix."""
    return TensorShape([rows, cols])


def dims_of(value: Any) -> Dims:
    """The sizes in whatever stands for a shape.

    Raises:
      TypeError: it is none.
    """
    if value is None:
        return None
    if isinstance(value, TensorShape):
        return value.sizes
    if hasattr(value, "unknown_rank"):  # a TensorShapeProto
        return None if value.unknown_rank else tuple(None if one.size == -1 else int(one.size) for one in value.dim)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_size_of(one) for one in value)
    if hasattr(value, "__iter__"):
        return tuple(_size_of(one) for one in value)
    return (_size_of(value),)


def _size_of(value: Any) -> int | None:
    if isinstance(value, Dimension):
        return value.value
    if value is None:
        return None
    size = int(value)
    return None if size == -1 else size
