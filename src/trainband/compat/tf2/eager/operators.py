"""Python's operators on tensors and variables. Importing this gives them to both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import indexing, math, matrices
from trainband.compat.ops.table import op_of
from trainband.compat.tf2.eager.execute import TENSORS, function_of, run
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.eager.variable import Variable

_BINARY: dict[str, Callable[..., Any]] = {
    "add": math.add,
    "sub": math.subtract,
    "mul": math.multiply,
    "truediv": math.divide,
    "floordiv": math.floordiv,
    "mod": math.floormod,
    "pow": math.pow_,
    "matmul": matrices.matmul,
    "and": math.logical_and,
    "or": math.logical_or,
    "xor": math.logical_xor,
}
_COMPARING: dict[str, Callable[..., Any]] = {
    "lt": math.less,
    "le": math.less_equal,
    "gt": math.greater,
    "ge": math.greater_equal,
}
_UNARY: dict[str, Callable[..., Any]] = {"neg": math.negative, "abs": math.abs_, "invert": math.logical_not}


def slice_item(tensor: Any, key: Any) -> Any:
    """What `tensor[key]` is: numbers, slices, `...`, `None`, and tensors of one number."""
    parts, given = indexing.planned_key(key, TENSORS.is_tensor)
    return run(op_of(indexing.slice_item), {"tensor": tensor, "parts": parts, "given": given})


def _equal(self: Any, other: Any) -> Any:
    return False if other is None else function_of(op_of(math.equal))(self, other)


def _not_equal(self: Any, other: Any) -> Any:
    return True if other is None else function_of(op_of(math.not_equal))(self, other)


def _method(function: Callable[..., Any], *, is_reversed: bool = False) -> Callable[..., Any]:
    call = function_of(op_of(function))

    def method(self: Any, *others: Any) -> Any:
        return call(*others, self) if is_reversed else call(self, *others)

    return method


for _class in (Tensor, Variable):
    for _symbol, _function in _BINARY.items():
        setattr(_class, f"__{_symbol}__", _method(_function))
        setattr(_class, f"__r{_symbol}__", _method(_function, is_reversed=True))
    for _symbol, _function in {**_COMPARING, **_UNARY}.items():
        setattr(_class, f"__{_symbol}__", _method(_function))
    for _symbol, _special in {"eq": _equal, "ne": _not_equal, "getitem": slice_item}.items():
        setattr(_class, f"__{_symbol}__", _special)
