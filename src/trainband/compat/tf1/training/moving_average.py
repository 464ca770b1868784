"""ExponentialMovingAverage: averages of variables or tensors, kept in shadow variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import array, math
from trainband.compat.tf1.graphs.graph import Operation, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded


class ExponentialMovingAverage:
    """Keeps a shadow of each variable: shadow - (1 - decay) (shadow - variable), whenever `apply`'s operation runs.

    Args:
      decay: how slowly the shadows follow.
      num_updates: of the updates so far: the decay is at most (1 + num_updates) / (10 + num_updates).
      zero_debias: not supported.
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        if zero_debias:
            raise NotImplementedError("ExponentialMovingAverage(zero_debias=True) is not supported, nor planned.")
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
            updates = []
            for one in wanted:
                shadow = self._averages[one]
                step = (shadow.read_value() - convert(one)) * (1.0 - decay)  # type: ignore[operator]
                updates.append(shadow.assign_sub(step))
            return group(*updates, name=scope)

    def _shadow(self, one: Any) -> Variable:
        graph = get_default_graph()
        name = one.op_name if isinstance(one, Variable) else one.op.name
        with graph.outside_scopes(), graph.control_dependencies(None):
            if isinstance(one, Variable):
                return Variable(lambda: one.initialized_value(), trainable=False, name=f"{name}/{self._name}")
            return Variable(
                lambda: recorded(array.zeros)(one.shape, one.dtype), trainable=False, name=f"{name}/{self._name}"
            )

    def average(self, var: Any) -> Variable | None:
        """The shadow of a variable; `None` where it has none."""
        return self._averages.get(var)

    def average_name(self, var: Any) -> str:
        """The name of a variable's shadow."""
        shadow = self._averages.get(var)
        return shadow.op_name if shadow is not None else f"{var.op_name}/{self._name}"

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
            if variable not in moving and variable.op_name not in found:
                found[variable.op_name] = variable
        return found
