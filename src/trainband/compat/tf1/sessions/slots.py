"""Slots: which variable an optimizer keeps for which other, and what it is called in a job's checkpoint."""

from __future__ import annotations

from trainband.compat.tf1.graphs.graph import Stored
from trainband.compat.tf1.graphs.variable import Variable


def is_slot(variable: Stored) -> bool:
    """Whether it belongs to an optimizer: with ps, it is there and nowhere else."""
    return "slot_of" in variable.op.attributes


def optimizer_tensor(variable: Variable) -> str | None:
    """Its name in a job's checkpoint; `None` where it is no slot."""
    of = variable.op.attributes.get("slot_of")
    if of is None:
        return None
    owner, name = of
    return f"optimizer/shared/{name}" if owner is None else f"optimizer/slots/{name}/{owner.op_name}"
