"""ExponentialMovingAverage: averages of variables or tensors, kept in shadow variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import math
from trainband.compat.tf1.graphs.graph import Operation, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.training.debiased_average import assign_moving_average
from trainband.compat.tf1.training.slots import create_zeros_slot, slot_of


class ExponentialMovingAverage:
    """Keeps a shadow of each variable: shadow - (1 - decay) (shadow - variable), whenever `apply`'s operation runs.

    Args:
      decay: how slowly the shadows follow.
      num_updates: of the updates so far: the decay is at most (1 + num_updates) / (10 + num_updates).
      zero_debias: whether averages of tensors, which begin at zero, are corrected for that.
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        self._zero_debias = zero_debias
        self._decay = decay
        self._num_updates = num_updates
        self._name = name
        self._averages: dict[Any, Variable] = {}

    @property
    def name(self) -> str:
        """Its name, the last part of the shadows' names."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Operation:
        """Record an operation that updates the shadows, which are created if necessary."""
        graph = get_default_graph()
        wanted = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if var_list is None else list(var_list)
        for one in wanted:
            if one not in self._averages:
                self._averages[one] = self._shadow(one)
                if isinstance(one, Variable):
                    graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, one)
        with graph.name_scope(self._name) as scope:
            decay = convert(self._decay)
            if self._num_updates is not None:
                count = recorded(math.cast)(self._num_updates, decay.dtype)
                decay = recorded(math.minimum)(decay, (1.0 + count) / (10.0 + count))
            return group(*[self._step(one, decay) for one in wanted], name=scope)

    def _step(self, one: Any, decay: Any) -> Any:
        shadow = self._averages[one]
        if self._zero_debias and not isinstance(one, Variable):
            return assign_moving_average(shadow, one, decay, zero_debias=True)
        return shadow.assign_sub((shadow.read_value() - convert(one)) * (1.0 - decay))  # type: ignore[operator]

    def _shadow(self, one: Any) -> Variable:
        if isinstance(one, Variable):
            return slot_of(one, one.initialized_value, self._name)
        return create_zeros_slot(one, self._name, colocate_with_primary=False)

    def average(self, var: Any) -> Variable | None:
        """The shadow of a variable; `None` where it has none."""
        return self._averages.get(var)

    def average_name(self, var: Any) -> str:
        """The name of a variable's shadow."""
        shadow = self._averages.get(var)
        if shadow is not None:
            return shadow.op_name
        return get_default_graph().unique_name(f"{var.op.name}/{self._name}", mark_as_used=False)

    def variables_to_restore(self, moving_avg_variables: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return a mapping of names to variables, to restore variables from their shadows."""
        graph = get_default_graph()
        moving = moving_avg_variables
        if moving is None:
            moving = [
                *graph.get_collection(GraphKeys.TRAINABLE_VARIABLES),
                *graph.get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES),
            ]
        found: dict[str, Any] = {self.average_name(variable): variable for variable in dict.fromkeys(moving)}
        for variable in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
            if variable.op_name not in found and all(variable is not one for one in moving):
                found[variable.op_name] = variable
        return found
