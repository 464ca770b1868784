"""TensorSpec: a shape and a dtype that tensors may fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.operation import Tensor


class TensorSpec:
    """A shape, of which parts may be unknown, a dtype, and perhaps a name."""

    def __init__(self, shape: Any, dtype: Any = "float32", name: str | None = None) -> None:
        self._shape, self._dtype, self._name = TensorShape(shape), as_dtype(dtype), name

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        """Make one from another."""
        return cls(spec.shape, spec.dtype, name or spec.name)

    @classmethod
    def from_tensor(cls, tensor: Tensor, name: str | None = None) -> TensorSpec:
        """Describe a tensor."""
        return cls(tensor.shape, tensor.dtype, name or tensor.op.name)

    @classmethod
    def is_bounded(cls) -> bool:
        """Whether it says what the elements may be."""
        return False

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape."""
        return self._shape

    @property
    def dtype(self) -> DType:
        """Of the elements."""
        return self._dtype

    @property
    def name(self) -> str | None:
        """What it is called."""
        return self._name

    def is_compatible_with(self, spec_or_tensor: Any) -> bool:
        """Whether a tensor, or all that fits another spec, may fit this one."""
        return self._dtype.is_compatible_with(spec_or_tensor.dtype) and self._shape.is_compatible_with(
            spec_or_tensor.shape
        )

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self._shape}, dtype={self._dtype!r}, name={self._name!r})"

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, TensorSpec)
            and (self._shape, self._dtype) == (other.shape, other.dtype)
        )

    def __hash__(self) -> int:
        return hash((self._shape, self._dtype))

    def __reduce__(self) -> Any:
        return type(self), (self._shape, self._dtype, self._name)


class BoundedTensorSpec(TensorSpec):
    """A spec with the least and the largest value of each element."""

    def __init__(self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: str | None = None) -> None:
        super().__init__(shape, dtype, name)
        self._minimum, self._maximum = (
            self._bound(one, what) for one, what in ((minimum, "minimum"), (maximum, "maximum"))
        )

    def _bound(self, value: Any, what: str) -> np.ndarray[Any, Any]:
        if value is None:
            raise ValueError(f"{what} can not be None")
        found = np.array(value, self.dtype.numpy)
        sizes = self.shape.sizes
        if sizes is not None:
            try:
                np.broadcast_shapes(tuple(1 if one is None else one for one in sizes), found.shape)
            except ValueError as exc:
                raise ValueError(f"{what} is not compatible with shape. Message: {exc}.") from exc
        found.setflags(write=False)
        return found

    @classmethod
    def from_spec(cls, spec: Any, name: str | None = None) -> BoundedTensorSpec:
        """Make one from another, with the limits of the dtype where it has none."""
        minimum, maximum = getattr(spec, "minimum", spec.dtype.min), getattr(spec, "maximum", spec.dtype.max)
        return cls(spec.shape, spec.dtype, minimum, maximum, name or spec.name)

    @classmethod
    def is_bounded(cls) -> bool:
        """Whether it says what the elements may be."""
        return True

    @property
    def minimum(self) -> np.ndarray[Any, Any]:
        """The least values."""
        return self._minimum

    @property
    def maximum(self) -> np.ndarray[Any, Any]:
        """The largest values."""
        return self._maximum

    def __repr__(self) -> str:
        return (
            f"BoundedTensorSpec(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r}, "
            f"minimum={self._minimum!r}, maximum={self._maximum!r})"
        )

    def __eq__(self, other: object) -> bool:
        return (
            super().__eq__(other)
            and isinstance(other, BoundedTensorSpec)
            and np.allclose(self._minimum, other.minimum)
            and np.allclose(self._maximum, other.maximum)
        )

    __hash__ = TensorSpec.__hash__

    def __reduce__(self) -> Any:
        return type(self), (self.shape, self.dtype, self._minimum, self._maximum, self.name)
