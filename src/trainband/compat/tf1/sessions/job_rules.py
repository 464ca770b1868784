"""How a job's shared variables change on the ps: by their optimizers, by addition, or by assignment.

The params of a job are what its optimizers train and floating-point variables that are added to. All other shared
variables are its model state. Those that training runs assign are replaced by each push, and whole numbers that
training runs count up are added to. The rest is held: no push changes them. Whatever a script assigns outside these
rules is written to the ps at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.graph import Graph, Operation, Stored
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.ps_optimizer import Update, on_ps, updates_of
from trainband.compat.tf1.training.global_step import used_step
from trainband.runtime.overrides import override


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition(Rule):
    """Adds what is pushed, as `assign_add` does."""

    @override
    def update(self, value: Any, gradient: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> Any:  # noqa: ARG002
        return value + gradient, slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Held(Rule):
    """A param that stays as it is: it makes room for a number sent with the gradients."""

    @override
    def update(self, value: Any, gradient: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> Any:  # noqa: ARG002
        return value, slots


@dataclass(frozen=True, slots=True)
class JobRules:
    """How the shared variables of a graph change, by name.

    Attributes:
      updates: of the params.
      held: the variables of the model state that no push changes.
      added: those to which a push adds.
    """

    updates: Mapping[str, Sequence[Update]]
    held: frozenset[str]
    added: frozenset[str]


def rules_of(graph: Graph, step: Variable | None, shared: Mapping[str, Variable], ps_count: int) -> JobRules:
    """How the shared variables of a graph change; `step` is not among them."""
    found = updates_of(applications(graph.operations), step)
    for op in graph.operations:
        if adds(op) and op.attributes["variable"].op_name in shared:
            found.setdefault(
                op.attributes["variable"].op_name, [Update(Addition(type="AssignAdd"), {}, {}, "add", False)]
            )
    assigned = _assigned_in_steps(graph)
    places = {place for ways in found.values() for update in ways for place in update.places}
    for place in sorted(places):
        found |= {on_ps(place, ps): [Update(Held(type="Held"), {}, {}, "held", False)] for ps in range(ps_count)}
    state = [name for name in shared if name not in found]
    return JobRules(
        found,
        frozenset(name for name in state if name not in assigned),
        frozenset(
            name
            for name in state
            if name in assigned and shared[name].dtype.is_integer and all(map(_is_addition, assigned[name]))
        ),
    )


def counted_step(graph: Graph) -> Variable | None:
    """The global step, where the job counts it: each update is one step.

    `None` if the graph has none, or if it counts differently: some updates only, or by other operations. It is a
    variable as any other then.
    """
    step = used_step(graph)
    if step is None:
        return None
    calls = {op.attributes["application"].call for op in applications(graph.operations)}
    others = any(
        step in op.writes and "initializes" not in op.attributes and not op.attributes.get("counts")
        for op in graph.operations
    )
    return None if len(calls) > 1 or (calls and others) else step


def adds(op: Operation) -> bool:
    """Whether an operation adds to a floating-point variable that all tasks share."""
    if not _is_addition(op):
        return False
    variable = op.attributes["variable"]
    return bool(variable.dtype.is_floating) and is_shared(variable) and "slot_of" not in variable.op.attributes


def is_shared(variable: Stored) -> bool:
    """Whether a variable belongs to all tasks, and not to each process for itself.

    Each process has its own local variables, and those that the script puts on the process's own task. The slots of an
    optimizer belong to where their variable does.
    """
    if (slot := variable.op.attributes.get("slot_of")) is not None:
        variable = slot[0] if slot[0] is not None else variable.op.attributes["slot_beside"]
    graph = variable.graph
    if variable not in graph.get_collection_ref(GraphKeys.GLOBAL_VARIABLES):
        return False
    device = DeviceSpec.from_string(variable.op.device)
    return graph.here.task is None or (device.job, device.task) != (graph.here.job, graph.here.task)


def applications(operations: Sequence[Operation]) -> list[Operation]:
    """Those operations that train a shared variable."""
    return [
        op for op in operations if "application" in op.attributes and is_shared(op.attributes["application"].variable)
    ]


def _is_addition(op: Operation) -> bool:
    return op.type in ("AssignAdd", "AssignSub")


def only_added_to(operations: Iterable[Operation], names: Collection[str]) -> frozenset[str]:
    """Those of some variables, by name, that the operations change only by adding to them."""
    found = set(names)
    for op in operations:
        if not _is_addition(op):
            found -= {variable.op_name for variable in op.writes}
    return frozenset(found)


def _assigned_in_steps(graph: Graph) -> dict[str, list[Operation]]:
    """Return the variables that training runs assign, in operations before or after a training operation, and those."""
    trains: set[Operation] = set(applications(graph.operations))
    for op in graph.operations:  # what an operation needs was recorded before it
        if any(tensor.op in trains for tensor in op.inputs) or any(one in trains for one in op.control_inputs):
            trains.add(op)
    needed: set[Operation] = set()
    waiting = list(trains)
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    found: dict[str, list[Operation]] = {}
    for op in needed:
        for variable in op.writes if "initializes" not in op.attributes else ():
            found.setdefault(variable.op_name, []).append(op)
    return found
