"""GraphDef: the operations of a graph as a list of records, to look at. It cannot be run or stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class _Operation(Protocol):
    name: str
    type: str
    device: str
    inputs: tuple[Any, ...]
    control_inputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NodeDef:
    """An operation: its name, its type, and where its inputs come from; `^` marks a control dependency."""

    name: str
    op: str
    input: Sequence[str] = ()
    device: str = ""
    attr: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, operation: _Operation) -> NodeDef:
        """The record of an operation."""
        inputs = [one.name.removesuffix(":0") for one in operation.inputs]
        return cls(
            operation.name,
            operation.type,
            [*inputs, *(f"^{one.name}" for one in operation.control_inputs)],
            operation.device,
        )


@dataclass(frozen=True, slots=True)
class GraphDef:
    """The operations of a graph, in the order in which they were recorded."""

    node: Sequence[NodeDef] = ()
