"""The body of a branch or a loop as a function: what it takes from outside, and which variables it looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.ops.dtypes import DType
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Operation, Region, Stored, Tensor, get_default_graph
from trainband.compat.tf1.graphs.keys import Keys
from trainband.compat.tf1.graphs.lowering import Frame, Schedule, has, needed_operations
from trainband.compat.tf1.graphs.record import record

Function = Callable[[Mapping[str, Any], "Keys | None", Sequence[Any]], tuple[list[Any], dict[str, Any]]]
"""(the state, random keys, values of what is given) to (values of the outputs, the changed state)."""


class Body:
    """The operations of a region that its outputs need. The others never run, as in TensorFlow 1.

    Attributes:
      captured: the tensors from outside that it uses.
      after: the operations from outside that it has control dependencies on. They run once, before it.
      reads, writes: the variables that it reads as they are when it runs, and that it changes.
      hoisted: its reads of variables that it does not change, by variable: they can be read before it begins, and so
        a derivative by them goes through.
    """

    def __init__(self, region: Region, outputs: Sequence[Tensor], variables: Sequence[Tensor] = ()) -> None:
        self.region = region
        self.outputs = tuple(outputs)
        self.variables = tuple(variables)
        roots = [output.op for output in outputs if region.contains(output.op)]
        needed = needed_operations(roots, variables, region)
        self.writes = {variable.op_name: variable for op in needed for variable in op.writes}
        self.hoisted: dict[str, tuple[Any, list[Tensor]]] = {}
        rest: list[Operation] = []
        for op in needed:
            variable = op.attributes.get("variable")
            if variable is not None and not op.inputs and not op.writes and variable.op_name not in self.writes:
                self.hoisted.setdefault(variable.op_name, (variable, []))[1].extend(op.outputs)
            else:
                rest.append(op)
        self.reads = {variable.op_name: variable for op in rest for variable in op.reads}
        self.has_effects = any(has(op, "effect") for op in needed)
        before = dict.fromkeys(one for op in needed for one in op.control_inputs)
        self.after = [one for one in before if not region.contains(one)]
        used = [*(tensor for op in needed for tensor in op.inputs), *outputs]
        self.captured = list(dict.fromkeys(t for t in used if not region.contains(t.op) and t not in self.variables))

    def function(self, given: Sequence[Tensor], outputs: Sequence[Tensor] | None = None) -> Function:
        """The body as a function of the state, of `given`, and after that of its hoisted reads, in their order."""
        wanted = self.outputs if outputs is None else tuple(outputs)
        reads = {tensor for _, tensors in self.hoisted.values() for tensor in tensors}
        needed = needed_operations([t.op for t in wanted if self.region.contains(t.op)], given, self.region)
        before = [one for op in needed if op.outputs and op.outputs[0] in reads for one in op.control_inputs]
        schedule = Schedule(
            [*wanted, *(op for op in before if self.region.contains(op))], [*given, *reads], self.region
        )

        def call(
            state: Mapping[str, Any], keys: Keys | None, values: Sequence[Any]
        ) -> tuple[list[Any], dict[str, Any]]:
            known = dict(zip(given, values, strict=False))
            for (_, tensors), value in zip(self.hoisted.values(), values[len(given) :], strict=True):
                known |= dict.fromkeys(tensors, value)
            frame = Frame(dict(state), keys, known)
            frame.run(schedule)
            return [frame.value(output) for output in wanted], frame.state

        return call


def state_of(bodies: Sequence[Body], *, always: bool) -> tuple[list[Stored], list[Stored]]:
    """The variables that some bodies read, and those that they change.

    What only some of them change must be read as well; without `always`, all of it, since perhaps none of them runs.
    """
    reads = {name: variable for body in bodies for name, variable in body.reads.items()}
    writes = {name: variable for body in bodies for name, variable in body.writes.items()}
    for name, variable in writes.items():
        if not always or not all(name in body.writes for body in bodies):
            reads[name] = variable
    return list(reads.values()), list(writes.values())


def is_pure(bodies: Sequence[Body]) -> bool:
    """Whether it does not matter when bodies run."""
    return not any(body.reads or body.writes or body.has_effects for body in bodies)


def done_before(bodies: Sequence[Body]) -> list[Operation]:
    """The operations that have to be done before some bodies run."""
    return list(dict.fromkeys(one for body in bodies for one in body.after))


def read_before(bodies: Sequence[Body], after: Sequence[Operation]) -> dict[str, Tensor]:
    """Record the hoisted reads of some bodies, when some operations are done; by variable."""
    variables = {name: variable for body in bodies for name, (variable, _) in body.hoisted.items()}
    if not variables:
        return {}
    with get_default_graph().control_dependencies([*after, *done_before(bodies)]):
        return {name: variable.read_value() for name, variable in variables.items()}


def loop_variable(dtype: DType, shape: TensorShape, name: str = "Identity") -> Tensor:
    """Record what stands for a value that changes from one round of a loop to the next."""

    def compute() -> Any:
        raise RuntimeError("A loop variable has a value only inside its loop.")

    return record("LoopVariable", compute, dtypes=[dtype], shapes=[shape], name=name).outputs[0]
