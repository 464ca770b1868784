"""TensorArray: a list of tensors of one shape, which loops write one by one.

It is one array, whose rows are the elements. The array has no columns until the shape of the elements is known; a loop
that writes the first element finds out what the shape is before it begins.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import sequences
from trainband.compat.ops.array import identity
from trainband.compat.ops.dtypes import as_dtype, int32
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import convert, known_value, record, record_tensor
from trainband.compat.tf1.operations.recorder import recorded


class TensorArray:
    """A list of tensors. Each change gives a new one.

    Args:
      size: how many elements.
      dynamic_size: whether it grows when something is written beyond its end.
      element_shape: of the elements, if it is known beforehand.
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,  # noqa: ARG002 - memory is the compiler's business
        tensor_array_name: str | None = None,  # noqa: ARG002
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,  # noqa: ARG002
        name: str | None = None,
    ) -> None:
        self.dtype = as_dtype(dtype)
        """Of the elements."""
        self.dynamic_size = bool(dynamic_size)
        """Whether it grows."""
        self._infer = infer_shape
        self._known = [TensorShape(element_shape)]  # shared by all that come from this one
        given = handle if handle is not None else flow
        if given is None and size is None:
            raise ValueError("Size must be provided if handle is not provided")
        if given is None:
            count = convert(size, int32)
            known = self._known[0]
            sizes = [size or 0 for size in known.as_list()] if known.is_fully_defined() else None
            given = record_tensor(
                "TensorArrayV3",
                lambda value: sequences.elements(value, self.dtype, sizes),
                [count],
                name=name or "TensorArray",
                dtypes=[self.dtype],
                shapes=[None if sizes is None else [_number(count), *sizes]],
            )
        else:
            count = recorded(sequences.count_of)(given)
        self._held: Tensor = _resizable(given) if self.dynamic_size else given
        self._count = _number(count)
        self._length: Tensor | None = count if self.dynamic_size else None

    # --- what it is

    @property
    def flow(self) -> Tensor:
        """The tensor that holds the elements."""
        return self._held

    handle = flow

    @property
    def element_shape(self) -> TensorShape:
        """What is known of the elements' shape."""
        return self._known[0]

    def size(self, name: str | None = None) -> Tensor:
        """How many elements there are."""
        if self._length is not None:
            return recorded_identity(self._length, name)
        return recorded(sequences.count_of)(self._held, name=name)  # type: ignore[no-any-return]

    def identity(self) -> TensorArray:
        """The same elements."""
        return copy.copy(self)

    def close(self, name: str | None = None) -> Any:
        """Record an operation that does nothing."""
        return record("NoOp", lambda: (), count=0, name=name)

    # --- reading

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """One element."""
        return self._shaped(recorded(sequences.read)(self._held, index, name=name), [])

    def stack(self, name: str | None = None) -> Tensor:
        """All elements, as one tensor."""
        return self._shaped(self._whole(name), [None if self.dynamic_size else self._count])

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """Some elements, as one tensor."""
        places = convert(indices)
        first = places.shape.as_list() if places.shape.ndims is not None else [None]
        return self._shaped(recorded(sequences.gathered)(self._held, places, name=name), first)

    def concat(self, name: str | None = None) -> Tensor:
        """All elements one after the other."""
        result: Tensor = recorded(sequences.joined)(self._whole(), name=name)
        if self._known[0].ndims is not None:
            result.set_shape([None, *self._known[0].as_list()[1:]])
        return result

    # --- writing

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """The elements, one of which is replaced."""
        tensor = self._checked(value)
        self._learn(tensor.shape)
        held = recorded(sequences.written)(self._held, index, tensor, self.dynamic_size, name=name)
        return self._with(held, index)

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """The rows of a tensor, in place of all elements."""
        tensor = self._checked(value)
        self._learn(_rows(tensor))
        return self._filled(recorded_identity(tensor, name))

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """The elements, some of which are replaced by the rows of a tensor."""
        tensor = self._checked(value)
        self._learn(_rows(tensor))
        held = recorded(sequences.scattered)(self._held, indices, tensor, self.dynamic_size, name=name)
        return self._with(held, indices)

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """Parts of a tensor, which must be of equal length, in place of all elements."""
        held: Tensor = recorded(sequences.parted)(self._checked(value), lengths, name=name)
        self._learn(_rows(held))
        return self._filled(held)

    pack, unpack = stack, unstack

    # --- inside

    def _checked(self, value: Any) -> Tensor:
        tensor = convert(value, None if hasattr(value, "dtype") else self.dtype)
        if tensor.dtype != self.dtype:
            raise ValueError(
                f"TensorArray dtype is {self.dtype.name} but Op is trying to write dtype {tensor.dtype.name}."
            )
        return tensor

    def _learn(self, shape: TensorShape) -> None:
        if not self._infer:
            return
        if not self._known[0].is_compatible_with(shape):
            raise ValueError(f"Inconsistent shapes: saw {shape} but expected {self._known[0]}")
        self._known[0] = self._known[0].merge_with(shape)

    def _shaped(self, result: Tensor, first: Sequence[int | None]) -> Tensor:
        known = self._known[0]
        if self._infer and known.ndims is not None:
            result.set_shape(TensorShape([*first, *known.as_list()]))
        return result

    def _whole(self, name: str | None = None) -> Tensor:
        if self._length is None:
            return recorded_identity(self._held, name)
        return recorded(sequences.first_of)(self._held, self._length, name=name)  # type: ignore[no-any-return]

    def _filled(self, held: Tensor) -> TensorArray:
        """Like this one, with all elements replaced."""
        count = recorded(sequences.count_of)(held)
        return self._like(held, None if self._length is None else count, _number(count))

    def _with(self, held: Tensor, written: Any) -> TensorArray:
        """Like this one, with some elements replaced."""
        length = self._length
        if length is not None:
            length = recorded(sequences.length_after)(length, written)
        return self._like(held, length, self._count)

    def _like(self, held: Tensor, length: Tensor | None, count: int | None) -> TensorArray:
        found = copy.copy(self)
        held = _resizable(held) if self.dynamic_size else held
        found.__dict__.update(_held=held, _length=length, _count=count)
        return found

    def _nest_flatten(self) -> list[Any]:
        return [self._held] if self._length is None else [self._held, self._length]

    def _nest_pack(self, values: Sequence[Any]) -> TensorArray:
        return self._like(values[0], None if self._length is None else values[1], self._count)


def growing(structure: Any) -> dict[int, int]:
    """Where, among the leaves of a structure, the elements of arrays that grow are, and where their number is."""
    found, place = {}, 0
    for one in flatten(structure, objects=False):
        if isinstance(one, TensorArray) and one.dynamic_size:
            found[place] = place + 1
        place += len(flatten(one))
    return found


def _resizable(held: Tensor) -> Tensor:
    """The same elements; nothing is known of their number."""
    if held.shape.ndims is None:
        return held
    return record_tensor("Identity", lambda value: value, [held], dtypes=[held.dtype], shapes=[None])


def _number(tensor: Tensor) -> int | None:
    known = known_value(tensor)
    return None if known is None else int(known)


def _rows(tensor: Tensor) -> TensorShape:
    return TensorShape(None) if tensor.shape.ndims is None else TensorShape(tensor.shape.as_list()[1:])


def recorded_identity(tensor: Tensor, name: str | None) -> Tensor:
    """The same tensor under another name."""
    result: Tensor = recorded(identity)(tensor, name)
    return result
