"""GraphDef: a graph as a list of its operations, for scripts that look at names and types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class NodeDef:
    """An operation: its name, its type, the names of its inputs (`^name` for a control input), and its device."""

    name: str = ""
    op: str = ""
    input: list[str] = field(default_factory=list)
    device: str = ""
    attr: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, op: Any) -> NodeDef:
        """Describe an operation."""
        inputs = [tensor.name.removesuffix(":0") for tensor in op.inputs]
        return cls(op.name, op.type, [*inputs, *(f"^{one.name}" for one in op.control_inputs)], op.device)


@dataclass(slots=True)
class GraphDef:
    """The operations of a graph. It describes a graph; no graph can be made from it."""

    node: list[NodeDef] = field(default_factory=list)

    @classmethod
    def of(cls, operations: Iterable[Any]) -> GraphDef:
        """Describe operations."""
        return cls([NodeDef.of(op) for op in operations])
