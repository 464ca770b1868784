"""HostStage: what a run computes in Python before its compiled part: what is read, dequeued or decoded, and text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, UnimplementedError
from trainband.compat.tf1.graphs.graph import Operation, Region, Tensor
from trainband.compat.tf1.graphs.hosted import is_hosted
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.sessions.numpy_part import NumpyPart
from trainband.compat.tf1.sessions.split_run import Run, SplitRun, inputs_of


class HostStage:
    """The operations among those that some fetches need that Python computes, in the order in which they were recorded.

    Args:
      targets: what is fetched.
      fed: tensors whose values the script gives.

    Attributes:
      operations: they.
      given: the tensors whose values are known when the compiled part begins.
    """

    def __init__(self, targets: Iterable[Tensor | Operation], fed: Collection[Tensor]) -> None:
        self._fed = frozenset(fed)
        needed = _needed(targets, self._fed)
        self.operations = sorted((op for op in needed if is_hosted(op)), key=lambda op: op.number)
        for op in self.operations:
            if op.region is not None:
                raise UnimplementedError(
                    None,
                    op,
                    f"{op.name} ({op.type}, recorded at {op.where}) is in a branch of a cond or in a loop: use "
                    "queues, datasets and strings outside of it",
                )
        mine = set(self.operations)
        outputs = [output for op in self.operations for output in op.outputs]
        self._before = list(
            dict.fromkeys(
                tensor
                for op in self.operations
                for tensor in op.inputs
                if tensor.op not in mine and tensor not in self._fed and tensor.op.type != "Const"
            )
        )
        """Computed first by the compiled part of another run."""
        self._effects = _effects(self._before, self._fed)
        """Its side effects, such as counting, which must not be repeated."""
        self._before += [one for one in self._effects if one not in self._before]
        self.given = tuple(one for one in (*outputs, *self._before) if one not in self._fed and one.dtype != string)
        self._parts: dict[Operation, NumpyPart | SplitRun] = {}

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.operations)

    def used_by(self, needed: Iterable[Operation]) -> set[Tensor]:
        """What compiled operations take as inputs, and what is fed for them alone."""
        mine = {tensor for op in self.operations for tensor in op.inputs}
        return inputs_of(needed) | {tensor for tensor in self._fed if tensor not in mine}

    def run(self, feeds: Mapping[Tensor, Any], resources: dict[Any, Any], run_compiled: Run) -> dict[Tensor, Any]:
        """The values of everything that is computed here, and of what it is computed from.

        Args:
          feeds: the values of what is fed.
          resources: what lives as long as the session, such as queues.
          run_compiled: for what is needed of compiled operations.

        Raises:
          OpError: as a source raises it, such as `OutOfRangeError` at its end.
        """
        values = dict(feeds)
        for op in self.operations:
            if all(output in values for output in op.outputs) and op.outputs:
                continue  # fed, all of it
            self._prepare(op, values, run_compiled)
            arguments = [values[tensor] for tensor in op.inputs]
            results = _computed(op, arguments, resources)
            for output, result in zip(op.outputs, results, strict=True):
                values.setdefault(output, as_declared(result, output))
        return values

    def _prepare(self, op: Operation, values: dict[Tensor, Any], run_compiled: Run) -> None:
        """Computes those inputs of an operation that are not known yet, all of them together."""
        if all(tensor in values for tensor in op.inputs):
            return
        part = self._parts.get(op)
        if part is None:
            missing = list(dict.fromkeys(tensor for tensor in op.inputs if tensor not in values))
            part = NumpyPart.of(missing, values.keys())
            if part is None:
                known = [one for one in values if one.dtype != string]
                constant = [tensor for tensor in missing if tensor.op.type == "Const"]
                values.update((tensor, np.asarray(tensor.op.compute()[0])) for tensor in constant)
                missing = [tensor for tensor in missing if tensor not in values]
                on_the_way = set(_effects(missing, values)) if self._effects else set()
                missing += [one for one in self._effects if one in on_the_way and one not in (*values, *missing)]
                part = SplitRun(Computation(missing, known))  # without constants, which later runs need not know
            self._parts[op] = part
        if isinstance(part, NumpyPart):
            part.run(values)
            return
        found, _ = part.run(values, run_compiled)
        values.update((one, np.asarray(value)) for one, value in zip(part.fetches, found, strict=True))
        for tensor in op.inputs:
            if tensor not in values:
                values[tensor] = np.asarray(tensor.op.compute()[0])


def _computed(op: Operation, arguments: Sequence[Any], resources: dict[Any, Any]) -> Sequence[Any]:
    source = op.attributes.get("source")
    try:
        if source is not None:
            found: Sequence[Any] = source(resources, *arguments)
            return found
        results: Sequence[Any] = op.attributes.get("python", op.compute)(*arguments)
    except (ArithmeticError, LookupError, TypeError, ValueError) as exc:
        raise InvalidArgumentError(None, op, f"{op.type}: {exc}") from exc
    return results


def as_declared(value: Any, tensor: Tensor) -> Any:
    """An array of the dtype of a tensor; text is bytes.

    Raises:
      InvalidArgumentError: it does not have the tensor's shape.
    """
    kind = tensor.dtype.numpy
    array = value if isinstance(value, np.ndarray) and value.dtype == kind else np.asarray(value, dtype=kind)
    if array.shape != tensor.shape.sizes and not tensor.shape.is_compatible_with(array.shape):
        raise InvalidArgumentError(
            None, tensor.op, f"{tensor.op.name} gave shape {array.shape} where {tensor.shape} was declared"
        )
    return array


def _needed(targets: Iterable[Tensor | Operation], fed: Collection[Tensor]) -> set[Operation]:
    found: set[Operation] = set()
    waiting = [one if isinstance(one, Operation) else one.op for one in targets if one not in fed]
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        waiting += [tensor.op for tensor in op.inputs if tensor not in fed]
        waiting += op.control_inputs
        for region in op.attributes.get("regions", ()):
            waiting += _outside(region)
    return found


def _effects(targets: Iterable[Tensor], known: Collection[Tensor]) -> list[Tensor]:
    """What operations give that change variables or draw random numbers, among those that some tensors need."""
    needed: set[Operation] = set()
    waiting = [one.op for one in targets if one not in known]
    while waiting:
        op = waiting.pop()
        if op not in needed and not is_hosted(op):
            needed.add(op)
            waiting += [tensor.op for tensor in op.inputs if tensor not in known]
            waiting += op.control_inputs
    found = (op for op in needed if op.stateful and op.region is None and (op.writes or not op.reads))
    return [output for op in sorted(found, key=lambda op: op.number) for output in op.outputs]


def _outside(region: Region) -> list[Operation]:
    """What the operations of a region need of outside, and those of them that Python would have to compute."""
    return [op for op in region.operations if is_hosted(op)]
