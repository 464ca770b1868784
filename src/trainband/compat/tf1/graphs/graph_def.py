"""GraphDef of a graph: a node for each operation, with what it takes to record it again.

The attribute `_trainband` of a node says which operation of the table it is, and with which settings. `_region` says in
which branch or loop an operation is. What has no such form, such as derivatives and queues, is only named.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from trainband.compat.tf1.graphs.node_settings import REGION, SETTINGS, packed
from trainband.compat.tf1.protos.graph import GraphDef, NodeDef
from trainband.compat.tf1.protos.tensor import tensor_proto

PRODUCER = 27
"""The version of the format, that of TensorFlow 1.15."""


def graph_def(operations: Iterable[Any], add_shapes: bool = False) -> Any:
    """Describe operations."""
    made = GraphDef()
    made.versions.producer = PRODUCER
    for op in operations:
        _describe(op, made.node.add(), add_shapes)
    return made


def node_def(op: Any) -> Any:
    """Describe an operation."""
    made = NodeDef()
    _describe(op, made, add_shapes=False)
    return made


def _describe(op: Any, node: Any, add_shapes: bool) -> None:
    variable = op.attributes.get("variable")
    node.name, node.op, node.device = op.name, op.type, op.device
    if variable is not None and variable.op is not op and variable.op is not None:
        node.input.append(variable.op_name)
    node.input.extend(tensor.name.removesuffix(":0") for tensor in op.inputs)
    node.input.extend(f"^{one.name}" for one in op.control_inputs)
    attr = node.attr
    if op.type in ("Const", "Placeholder", "VariableV2"):
        attr["dtype"].type = op.outputs[0].dtype.as_datatype_enum
    elif op.outputs:
        attr["T"].type = op.outputs[0].dtype.as_datatype_enum
    if op.type in ("Placeholder", "PlaceholderWithDefault", "VariableV2"):
        attr["shape"].shape.CopyFrom(op.outputs[0].shape.as_proto())
    if op.type == "Const":
        attr["value"].tensor.CopyFrom(tensor_proto(op.compute()[0]))
    elif op.outputs:
        attr["_output_types"].list.type.extend(one.dtype.as_datatype_enum for one in op.outputs)
    if add_shapes or (op.outputs and op.type != "Const"):
        attr["_output_shapes"].list.shape.extend(one.shape.as_proto() for one in op.outputs)
    if op.region is not None and op.region.label is not None:
        attr[REGION].s = op.region.label.encode()
    with suppress(TypeError):
        settings = _settings(op, variable)
        if settings:
            attr[SETTINGS].s = packed(settings)


def _settings(op: Any, variable: Any) -> dict[str, Any]:
    if variable is not None:
        return {"initializes": True} if op.attributes.get("initializes") is not None else {}
    if "op" in op.attributes:
        return {one: op.attributes[one] for one in ("op", "arguments", "layout", "seed") if one in op.attributes}
    return {"again": op.attributes["again"]} if "again" in op.attributes else {}
