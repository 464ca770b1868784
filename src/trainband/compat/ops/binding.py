"""From what a script passes to what an operation's function takes, by TensorFlow's rules for dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainband.compat.ops.dtypes import DType, as_dtype, int32
from trainband.compat.ops.table import Op


class Tensors(Protocol):
    """How a front end makes tensors of what a script passes. Tensors have a `dtype`."""

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor or stands for one, and so has a dtype of its own."""
        ...

    def convert(self, value: Any, dtype: DType | None) -> Any:
        """Make a tensor, of the given dtype if there is one.

        Raises:
          TypeError, ValueError: the value cannot become a tensor, or not one of this dtype.
        """
        ...

    def known(self, value: Any, what: str) -> Any:
        """Return the value of a tensor that an operation must know before it runs, or `Late` if it is computed.

        Raises:
          ValueError: it is computed, and that is too late.
        """
        ...


@dataclass(frozen=True, slots=True)
class Late:
    """A tensor in place of a plain value: it must be known by the time the operation is compiled."""

    tensor: Any

    @property
    def shape(self) -> Any:
        """What is known of its shape."""
        return self.tensor.shape.sizes


def converted(op: Op, values: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Convert arguments: array parameters get tensors, or lists of them, and all others plain values.

    Raises:
      TypeError: two arguments that must be of one dtype are not.
      ValueError: an argument must be known, but is computed.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in op.lists:
            found[name] = _list(value, tensors)
        elif name not in op.tensors:
            found[name] = tensors.known(value, f"{op.name}: {name}") if tensors.is_tensor(value) else value
    if op.alike:
        given = {name: values[name] for name in op.alike if values[name] is not None or name not in op.optional}
        found |= _alike(op, given, tensors)
    late = [name for name in op.tensors if name in op.like]
    for name in [*(one for one in op.tensors if one not in op.like), *late]:
        if name in found:
            continue
        value = values[name]
        if value is None and name in op.optional:
            found[name] = None
        elif name in op.shapes:
            found[name] = tensors.convert(value, None if _has_tensor(value, tensors) else int32)
        else:
            found[name] = tensors.convert(value, _dtype_for(op, name, found))
    for name, kinds in op.kinds.items():
        if found[name] is not None and _kind(as_dtype(found[name].dtype)) not in kinds:
            raise TypeError(
                f"Value passed to parameter '{name}' of {op.type} has DataType {as_dtype(found[name].dtype).name}, "
                f"which is not one of the allowed kinds: {kinds}"
            )
    for name in op.lists:
        if not found[name] and not op.tensors:
            raise ValueError(
                f"{name} must be a list of at least one Tensor/IndexedSlices with the same dtype and shape"
            )  # fmt: skip
    return found


def _kind(dtype: DType) -> str:
    if dtype.is_floating or dtype.is_complex:
        return "complex" if dtype.is_complex else "float"
    return "int" if dtype.is_integer else "bool" if dtype.is_bool else dtype.name


def _has_tensor(value: Any, tensors: Tensors) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(one, tensors) for one in value)
    return tensors.is_tensor(value)


def _list(value: Any, tensors: Tensors) -> list[Any]:
    """Convert several values; numbers take the dtype of the first tensor among them."""
    several = isinstance(value, Iterable) and not tensors.is_tensor(value)
    listed = list(value) if several else [value]
    first = next((one for one in listed if tensors.is_tensor(one)), None)
    dtype = None if first is None else as_dtype(tensors.convert(first, None).dtype)
    return [tensors.convert(one, None if tensors.is_tensor(one) else dtype) for one in listed]


def _dtype_for(op: Op, name: str, found: Mapping[str, Any]) -> DType | None:
    for source in op.like.get(name, ()):
        if source not in found:
            return as_dtype(source)
        if found[source] is not None:
            given = found[source]
            return as_dtype(given if isinstance(given, type) else getattr(given, "dtype", given))
    return None


def _alike(op: Op, given: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Convert operands to one dtype: that of the first tensor, or else of the first operand."""
    names = sorted(given, key=lambda name: not tensors.is_tensor(given[name]))
    found: dict[str, Any] = {}
    for name in names:
        value = given[name]
        if not found:
            found[name] = tensors.convert(value, None)
            leader, dtype = name, as_dtype(found[name].dtype)
        elif tensors.is_tensor(value):
            found[name] = tensors.convert(value, None)
            if as_dtype(found[name].dtype) != dtype:
                raise TypeError(
                    f"Input '{name}' of '{op.type}' Op has type {as_dtype(found[name].dtype).name} that does not match "
                    f"type {dtype.name} of argument '{leader}'."
                )
        else:
            try:
                found[name] = tensors.convert(value, dtype)
            except (TypeError, ValueError) as exc:
                raise type(exc)(f"{exc} It is an operand of {op.type} with {found[leader]}.") from exc
    return found


def flattened(op: Op, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, int | None]]:
    """Return the tensors among converted arguments, and how many each parameter has (`None`: a single one)."""
    flat: list[Any] = []
    layout: dict[str, int | None] = {}
    for name in op.parameters:
        if name in op.lists:
            layout[name] = len(values[name])
            flat += values[name]
        elif isinstance(values[name], Late):
            layout[name] = None
            flat.append(values[name].tensor)
        elif name in op.tensors and values[name] is not None:
            layout[name] = None
            flat.append(values[name])
    return flat, layout


def put_back(values: Mapping[str, Any], layout: Mapping[str, int | None], flat: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments with other values, such as arrays, in place of their tensors."""
    found, rest = dict(values), iter(flat)
    for name, count in layout.items():
        found[name] = next(rest) if count is None else [next(rest) for _ in range(count)]
    return found
