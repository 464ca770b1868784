"""Operations that Python computes before the compiled part of a run: sources of data, and work on text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops.dtypes import DType, string
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.record import record

Source = Callable[..., Sequence[Any]]
"""Of what lives as long as the session, a dictionary, and the values of the inputs: those of the outputs."""


class Resources(dict[Any, Any]):
    """What lives as long as a session, such as queues."""

    closed = False
    """Whether the session has ended."""

    def close(self) -> None:
        """Closes whatever can be closed. Threads that still use something find it closed."""
        self.closed = True
        for resource in list(self.values()):
            if hasattr(resource, "close"):
                resource.close()


def record_source(
    type_: str,
    source: Source,
    inputs: Sequence[Tensor] = (),
    *,
    dtypes: Sequence[DType] = (),
    shapes: Sequence[Any] = (),
    name: str | None = None,
) -> Operation:
    """Record an operation that Python computes, once in each run that needs it, before the compiled part.

    It may wait, have effects, and raise errors of `graphs.errors`, such as `OutOfRangeError` where data ends. It cannot
    be inside a branch of a cond or a loop's body.

    Args:
      source: see `Source`. What it keeps in the dictionary is closed with the session if it has a method `close`.
      dtypes, shapes: of the outputs.
    """

    def compute(*_: Any) -> Any:
        raise TypeError(f"{type_} is computed before the compiled part of a run.")

    return record(
        type_,
        compute,
        inputs,
        name=name,
        count=len(dtypes),
        dtypes=list(dtypes),
        shapes=list(shapes),
        attributes={"source": source, "flat": True},
    )


_NOT_HOSTED = ("Const", "Placeholder", "LoopVariable")


def is_hosted(op: Operation) -> bool:
    """Whether Python computes an operation: it is a source (see `record_source`), or its values are text."""
    if "source" in op.attributes:
        return True
    if op.stateful or op.type in _NOT_HOSTED or not {"host", "asks", "variable"}.isdisjoint(op.attributes):
        return False
    if "effect" in op.attributes and "python" not in op.attributes:
        return False
    return any(tensor.dtype == string for tensor in (*op.inputs, *op.outputs))
