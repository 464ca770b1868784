"""Slots: the variables that an optimizer keeps for others, and their names in a job's checkpoint."""

from __future__ import annotations

from trainband.compat.tf1.graphs.graph import Stored
from trainband.compat.tf1.graphs.variable import Variable


def is_slot(variable: Stored) -> bool:
    """Whether a variable belongs to an optimizer; in a job, only the ps have it."""
    return "slot_of" in variable.op.attributes


def optimizer_tensor(variable: Variable) -> str | None:
    """Return a slot's name in a job's checkpoint; `None` if the variable is not a slot."""
    of = variable.op.attributes.get("slot_of")
    if of is None:
        return None
    owner, name = of
    return f"optimizer/shared/{name}" if owner is None else f"optimizer/slots/{name}/{owner.op_name}"
