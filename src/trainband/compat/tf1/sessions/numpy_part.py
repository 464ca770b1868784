"""NumpyPart: operations between hosted ones that NumPy computes, without compiling anything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.checks import Note, noting
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.hosted import is_hosted


def failing(op: Operation) -> Note:
    """What raises if a condition of an operation does not hold."""

    def note(holds: Any, message: str) -> None:
        if not bool(holds):
            raise InvalidArgumentError(None, op, message)

    return note


class NumpyPart:
    """Some tensors as functions of known ones. Arrays of many shapes, such as images, need not be compiled for.

    Args:
      operations: what computes them, each after those that it needs.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    @classmethod
    def of(cls, tensors: Sequence[Tensor], known: Collection[Tensor]) -> NumpyPart | None:
        """The part that gives some tensors; `None` if JAX has to compute one of its operations."""
        found: set[Operation] = set()
        waiting = [tensor.op for tensor in tensors]
        while waiting:
            op = waiting.pop()
            if op in found:
                continue
            if not op.folds or op.stateful or op.early or op.region is not None or op.writes or is_hosted(op):
                return None
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs if tensor not in known]
            waiting += [one for one in op.control_inputs if not is_hosted(one)]
        return cls(sorted(found, key=lambda op: op.number))

    def run(self, values: dict[Tensor, Any]) -> None:
        """Adds what it computes to the values.

        Raises:
          InvalidArgumentError: an operation cannot be applied to such values.
        """
        with np.errstate(all="ignore"):
            for op in self._operations:
                try:
                    with noting(failing(op)):
                        results = op.compute(*[values[tensor] for tensor in op.inputs])
                except (LookupError, TypeError, ValueError) as exc:
                    shapes = ", ".join(str(np.shape(values[tensor])) for tensor in op.inputs)
                    raise InvalidArgumentError(
                        None, op, f"{op.type} of inputs of the shapes {shapes}: {str(exc).partition(chr(10))[0]}"
                    ) from exc
                for output, result in zip(op.outputs, results, strict=True):
                    if output not in values:
                        kind = output.dtype.numpy
                        is_right = isinstance(result, np.ndarray) and result.dtype == kind
                        values[output] = result if is_right else np.asarray(result, kind)
