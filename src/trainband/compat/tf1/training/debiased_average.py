"""`moving_averages.assign_moving_average`, which layers written by hand call."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import control_dependencies, name_scope
from trainband.compat.tf1.operations import state
from trainband.compat.tf1.operations.initializers import Zeros
from trainband.compat.tf1.operations.variable_scope import get_variable, get_variable_scope, variable_scope


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
            biased = _zeros("biased", variable.shape.as_list(), variable.dtype)
            steps = _zeros("local_step", [], variable.dtype)
        moved = state.assign_sub(biased, (biased - target) * rest)
        counted = state.assign_add(steps, one)
        with control_dependencies([moved, counted]):
            return state.assign(variable, moved / (one - kept**counted))


def _zeros(name: str, shape: list[int], dtype: Any) -> Any:
    """A variable in the open scope; under another name if this one is taken and the scope does not share."""
    scope = get_variable_scope()
    taken = {one.op_name for one in scope.global_variables()}
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    free = next(one for one in names if scope.reuse or f"{scope.name}/{one}" not in taken)
    return get_variable(free, shape, dtype, initializer=Zeros(), trainable=False)


def weighted_moving_average(
    value: Any,
    decay: Any,
    weight: Any,
    truediv: bool = True,
    collections: Sequence[str] | None = None,
    name: str = "WeightedMovingAvg",
) -> Any:
    """A moving average of a value in which each counts by its weight."""
    del truediv  # they are floating
    collections = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    with name_scope(name):
        value, weight = convert(value), convert(weight)
        moved = []
        for title, one in (("value_x_weight", value * weight), ("weight", weight)):
            kept = get_variable(
                title, value.shape, value.dtype, initializer=Zeros(), trainable=False, collections=collections
            )
            moved.append(assign_moving_average(kept, one, decay, zero_debias=False))
        return moved[0] / moved[1]
