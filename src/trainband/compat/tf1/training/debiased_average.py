"""`moving_averages.assign_moving_average`, which layers written by hand call."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import control_dependencies, name_scope
from trainband.compat.tf1.operations import state
from trainband.compat.tf1.operations.initializers import Zeros
from trainband.compat.tf1.operations.variable_scope import get_variable, variable_scope


def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str = "AssignMovingAvg"
) -> Any:
    """Record a step of a moving average: `variable` moves by `1 - decay` of its distance to `value`.

    Args:
      zero_debias: take the average of the values alone, as if it had not begun at zero. Two more variables hold it.
    """
    with name_scope(name):
        one: Any = convert(1.0, variable.dtype)
        kept: Any = convert(decay, variable.dtype)
        rest, target = one - kept, convert(value, variable.dtype)
        if not zero_debias:
            return state.assign_sub(variable, (variable - target) * rest)
        with variable_scope(variable.op.name, values=[variable, target]):
            biased = get_variable(
                "biased", variable.shape.as_list(), variable.dtype, initializer=Zeros(), trainable=False
            )
            steps = get_variable("local_step", [], variable.dtype, initializer=Zeros(), trainable=False)
        moved = state.assign_sub(biased, (biased - target) * rest)
        counted = state.assign_add(steps, one)
        with control_dependencies([moved, counted]):
            return state.assign(variable, moved / (one - kept**counted))
