"""TensorArray: a list of tensors, written one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import array
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.table import op_of
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OutOfRangeError
from trainband.compat.tf2.eager.execute import convert, function_of
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Tensor

_stack, _concat, _split = (function_of(op_of(one)) for one in (array.stack, array.concat, array.split))


class TensorArray:
    """A list of tensors of one dtype.

    Args:
      size: how many there are.
      dynamic_size: whether writing makes it longer.
      clear_after_read: whether each can be read only once.
      element_shape: of each.
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        del tensor_array_name, handle, colocate_with_first_write_call, name
        self.dtype: DType = as_dtype(dtype)
        self.dynamic_size = bool(dynamic_size)
        self.flow = flow
        self._clears = clear_after_read is not False
        self._infers = infer_shape
        self._shape = TensorShape(element_shape)
        self._items: list[Tensor | None] = [None] * int(size or 0)
        self._read: set[int] = set()

    @property
    def element_shape(self) -> TensorShape:
        """The shape of each."""
        return self._shape

    @property
    def handle(self) -> None:
        """Nothing: there are no handles."""
        return

    def identity(self) -> TensorArray:
        """Itself."""
        return self

    def _filled(self, items: Sequence[Tensor]) -> TensorArray:
        self._items = list(items)
        self._read.clear()
        return self

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """Put a tensor at a place. Returns the array.

        Raises:
          OutOfRangeError: there is no such place.
          InvalidArgumentError: the tensor has another dtype or shape than the others.
        """
        del name
        at, tensor = int(convert(index)), convert(value, None if hasattr(value, "dtype") else self.dtype)
        if tensor.dtype is not self.dtype:
            raise InvalidArgumentError(
                None,
                None,
                f"TensorArray dtype is {self.dtype.name} but Op is trying to write dtype {tensor.dtype.name}",
            )
        if at < 0 or (at >= len(self._items) and not self.dynamic_size):
            raise OutOfRangeError(
                None, None, f"Tried to write to index {at} but array is not resizeable and size is: {len(self._items)}"
            )
        if not self._shape.is_compatible_with(tensor.shape):
            raise ValueError(f"Incompatible shape for value ({tensor.shape}), expected ({self._shape})")
        if self._infers and self._shape.ndims is None:
            self._shape = tensor.shape
        self._items += [None] * (at + 1 - len(self._items))
        self._items[at] = tensor
        self._read.discard(at)
        return self

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The tensor at a place; zeros where nothing was written.

        Raises:
          OutOfRangeError: there is no such place.
          InvalidArgumentError: it has been read before.
        """
        del name
        at = int(convert(index))
        if not 0 <= at < len(self._items):
            raise OutOfRangeError(None, None, f"Tried to read from index {at} but array size is: {len(self._items)}")
        if at in self._read:
            raise InvalidArgumentError(
                None,
                None,
                f"Could not read index {at} twice because it was cleared after a previous read (perhaps try setting "
                "clear_after_read = false?)",
            )
        if self._clears:
            self._read.add(at)
        return self._at(at)

    def _at(self, at: int) -> Tensor:
        found = self._items[at]
        if found is not None:
            return found
        if not self._shape.is_fully_defined():
            raise InvalidArgumentError(
                None, None, f"Could not read index {at}: nothing was written, the shape is unknown"
            )
        return Tensor(np.zeros(self._shape.as_list(), self.dtype.numpy))

    def stack(self, name: str | None = None) -> Tensor:
        """All of them, one above the other."""
        del name
        if not self._items:
            sizes = [one or 0 for one in self._shape.as_list()] if self._shape.ndims is not None else []
            return Tensor(np.zeros([0, *sizes], self.dtype.numpy))
        found: Tensor = _stack([self._at(at) for at in range(len(self._items))])
        return found

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """Fill the array with a tensor's rows."""
        del name
        tensor = convert(value)
        return self._filled([tensor[at] for at in range(tensor.aval[0][0])])

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """Some of them, one above the other."""
        del name
        found: Tensor = _stack([self._at(int(at)) for at in np.asarray(convert(indices).numpy()).reshape(-1)])
        return found

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """Put a tensor's rows at some places. Returns the array."""
        del name
        tensor = convert(value)
        for row, at in enumerate(np.asarray(convert(indices).numpy()).reshape(-1)):
            self.write(int(at), tensor[row])
        return self

    def concat(self, name: str | None = None) -> Tensor:
        """All of them, joined along their first axis."""
        del name
        found: Tensor = _concat([self._at(at) for at in range(len(self._items))], 0)
        return found

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """Fill the array with parts of a tensor's first axis."""
        del name
        return self._filled(_split(value, [int(one) for one in np.asarray(convert(lengths).numpy())]))

    def size(self, name: str | None = None) -> Tensor:
        """How many there are."""
        del name
        return Tensor(np.asarray(len(self._items), np.int32))

    def __len__(self) -> int:
        return len(self._items)

    def close(self, name: str | None = None) -> None:
        """Does nothing."""

    mark_used = close
