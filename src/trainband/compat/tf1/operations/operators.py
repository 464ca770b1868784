"""Python's operators on tensors: each records an operation of the table. Importing this gives them to `Tensor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import indexing, math, matrices
from trainband.compat.ops.table import op_of
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, is_tensor
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.operations.recorder import record_op, recorded

_BINARY: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (math.add, "add"),
    "sub": (math.subtract, "sub"),
    "mul": (math.multiply, "mul"),
    "truediv": (math.divide, "truediv"),
    "floordiv": (math.floordiv, "floordiv"),
    "mod": (math.floormod, "floormod"),
    "pow": (math.pow_, "pow"),
    "matmul": (matrices.matmul, "matmul"),
    "and": (math.logical_and, "logical_and"),
    "or": (math.logical_or, "logical_or"),
    "xor": (math.logical_xor, "logical_xor"),
}
"""Of each operator with a reversed form, the operation and what it is called in a graph."""
_OTHERS: dict[str, Callable[..., Any]] = {
    "lt": math.less,
    "le": math.less_equal,
    "gt": math.greater,
    "ge": math.greater_equal,
    "neg": math.negative,
    "abs": math.abs_,
    "invert": math.logical_not,
}


def slice_item(tensor: Any, key: Any, name: str | None = None) -> Tensor:
    """What `tensor[key]` is: numbers, slices, `...`, `None`, and tensors of one number."""
    parts, given = indexing.planned_key(key, is_tensor)
    result: Tensor = record_op(
        op_of(indexing.slice_item), {"tensor": tensor, "parts": parts, "given": given}, name
    )  # fmt: skip
    return result


def _binary(function: Callable[..., Any], title: str, *, is_reversed: bool) -> Callable[[Any, Any], Any]:
    record = recorded(function)

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, SparseTensor):
            return NotImplemented
        return record(other, self, name=title) if is_reversed else record(self, other, name=title)

    return method


def _other(function: Callable[..., Any]) -> Callable[..., Any]:
    record = recorded(function)

    def method(self: Tensor, *others: Any) -> Any:
        return record(self, *others)

    return method


def with_dense(function: Callable[..., Any], given: SparseTensor, dense: Any) -> SparseTensor:
    """A function of the elements of a sparse tensor, and of what a dense one that is broadcast has at their places."""
    other = recorded(indexing.at_places)(convert(dense, given.dtype), given.indices)
    return SparseTensor(given.indices, recorded(function)(given.values, other), given.dense_shape)


def _of_sparse(function: Callable[..., Any]) -> Callable[[SparseTensor, Any], SparseTensor]:
    return lambda self, other: with_dense(function, self, other)


for _symbol, _function in (
    ("mul", math.multiply),
    ("rmul", math.multiply),
    ("truediv", math.divide),
    ("div", math.div),
):
    setattr(SparseTensor, f"__{_symbol}__", _of_sparse(_function))
for _symbol, (_function, _title) in _BINARY.items():
    setattr(Tensor, f"__{_symbol}__", _binary(_function, _title, is_reversed=False))
    setattr(Tensor, f"__r{_symbol}__", _binary(_function, _title, is_reversed=True))
for _symbol, _single in _OTHERS.items():
    setattr(Tensor, f"__{_symbol}__", _other(_single))
setattr(Tensor, "__getitem__", slice_item)  # noqa: B010 - as the others; a type checker sees no operators
