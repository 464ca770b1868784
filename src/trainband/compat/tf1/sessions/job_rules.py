"""How a job's shared variables change on the ps: by their optimizer, by addition, or by assignment.

A variable without a rule is model state: each update replaces it by the value of the pushing worker. That is
right for variables that a training step assigns. A value that one worker assigns between steps would be undone by the
next push of another worker; so such a variable has a rule, and a push changes it only if it carries an
assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from trainband.compat.ops.update_rules import Rule
from trainband.compat.tf1.graphs.device_spec import DeviceSpec
from trainband.compat.tf1.graphs.graph import Graph, Operation, Stored
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.sessions.ps_optimizer import Update, updates_of
from trainband.runtime.overrides import override

FLAG = "assigned"
"""The name of the flag that says whether a push assigns its variable."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment(Rule):
    """Replaces the value by what is pushed if the flag is set; if several workers set it, by the mean."""

    @override
    def update(self, value: Any, gradient: Any, slots: dict[str, Any], hyper: dict[str, Any]) -> Any:
        share = hyper[FLAG]
        return jnp.where(share > 0, gradient / jnp.where(share > 0, share, 1), value), slots


def updates_of_job(
    graph: Graph, step: Variable | None, shared: Mapping[str, Variable], ps_count: int
) -> dict[str, Update]:
    """How each of the job's params changes, by name; shared variables that are not among them are model state.

    Raises:
      UnimplementedError: two operations train one variable.
    """
    found = updates_of(applications(graph.operations), step)
    for op in graph.operations:
        if adds(op) and op.attributes["variable"].op_name in shared:
            found.setdefault(
                op.attributes["variable"].op_name, Update(Addition(type="AssignAdd"), {}, {}, "add", False)
            )
    assigned = _assigned_in_steps(graph)
    for name, variable in shared.items():
        # With several ps, a variable and its flag might lie on two of them.
        if name not in found and name not in assigned and variable.dtype.is_floating and ps_count == 1:
            found[name] = Update(Assignment(type="Assign"), {}, {FLAG: f"{name}/{FLAG}"}, "assign", False)
    for update in list(found.values()):
        for place in update.pushed.values():
            found.setdefault(place, Update(Held(type="Held"), {}, {}, "held", False))
    return found


def adds(op: Operation) -> bool:
    """Whether an operation adds to a floating-point variable that all tasks share."""
    if op.type not in ("AssignAdd", "AssignSub"):
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


def _assigned_in_steps(graph: Graph) -> set[str]:
    """Return the variables that training runs assign: in operations before or after a training operation."""
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
    return {variable.op_name for op in needed if "initializes" not in op.attributes for variable in op.writes}
