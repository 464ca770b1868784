"""ByDevice: puts each variable on the ps that its device names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainband.model.placement import Placement, Slice, rows_of
from trainband.model.variables import Variable


@dataclass(frozen=True, slots=True)
class ByDevice:
    """Puts each variable on the ps of its device string, and the others, the largest first, on the emptiest ps.

    Attributes:
      tasks: the number of the ps, by the variable's name.
    """

    tasks: Mapping[str, int]

    def place(
        self,
        variables: Sequence[Variable],
        ps_count: int,
        *,
        keep_whole: Collection[str] = (),  # noqa: ARG002 - none is cut
    ) -> Placement:
        """Puts every variable whole on one ps."""
        load = [0] * ps_count
        homes: dict[str, int] = {}
        for variable in variables:
            task = self.tasks.get(variable.name.removeprefix("state/") if not variable.trained else variable.name)
            if task is not None and task < ps_count:
                homes[variable.name] = task
                load[task] += variable.nbytes
        for variable in sorted(variables, key=lambda one: -one.nbytes):
            if variable.name not in homes:
                homes[variable.name] = load.index(min(load))
                load[homes[variable.name]] += variable.nbytes
        slices = tuple(Slice(one, 0, rows_of(one), homes[one.name]) for one in variables)
        return Placement(slices, ps_count)
