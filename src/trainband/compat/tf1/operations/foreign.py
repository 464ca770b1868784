"""The arguments of an operation of the table from a node that TensorFlow wrote, by the names of its attributes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.ops.table import TABLE, Op
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import known_value
from trainband.compat.tf1.protos.tensor import array_of_proto

_CALLED = {"keepdims": "keep_dims", "dtype": "DstT", "axis": "squeeze_dims", "input_tensor": "input"}
"""Parameters whose attributes have other names."""


def foreign_arguments(node: Any, inputs: Sequence[Tensor]) -> tuple[Op, dict[str, Any]] | None:
    """The operation of a node's type and its arguments; `None` if the table has none that takes them.

    Inputs are given to the parameters in their order; those that are no tensors in the table must be constants.
    """
    op = _by_type().get(node.op)
    if op is None:
        return None
    rest, found = list(inputs), dict[str, Any]()
    for name, parameter in op.parameters.items():
        later = sum(other in op.tensors and other not in found and other != name for other in op.parameters)
        attribute = next((one for one in (name, _CALLED.get(name, name)) if one in node.attr), None)
        if name in op.lists:
            count = node.attr["N"].i if "N" in node.attr else len(rest) - later
            found[name], rest = rest[:count], rest[count:]
        elif attribute is not None and not (name in op.tensors and rest):
            found[name] = _plain(node.attr[attribute])
        elif rest and name in op.tensors:
            found[name] = rest.pop(0)
        elif len(rest) > later and known_value(rest[0]) is not None:
            found[name] = known_value(rest.pop(0))
        elif parameter.default is not inspect.Parameter.empty:
            found[name] = parameter.default
        else:
            return None
    return None if rest else (op, found)


@functools.cache
def _by_type() -> dict[str, Op]:
    """The operations by type; where several have one, that of the plainest arguments."""
    found: dict[str, Op] = {}
    for op in dict.fromkeys(TABLE.values()):
        if op.type not in found or len(op.parameters) < len(found[op.type].parameters):
            found[op.type] = op
    return found


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    if kind == "s":
        return content.decode()
    if kind == "type":
        return as_dtype(content)
    if kind == "shape":
        return TensorShape(content)
    if kind == "tensor":
        return array_of_proto(content)
    if kind == "list":
        return [*content.i, *content.f, *(one.decode() for one in content.s), *content.b, *map(as_dtype, content.type)]
    return content
