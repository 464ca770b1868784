"""Updates of optimizers: divided, so that each ps updates the variables that it has.

The variables of an optimizer lie beside that to which they belong. What belongs to none alone, such as the count of
updates, is on every ps of the optimizer, which keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from trainband.compat.tf2.coordinator import jaxprs
from trainband.compat.tf2.coordinator.programs import exported
from trainband.compat.tf2.coordinator.rows import NotByRow, evaluated
from trainband.compat.tf2.coordinator.variables import Entry, Part
from trainband.compat.tf2.eager.captured import Update


class NotDivided(Exception):
    """An update needs on one ps what is on another."""


@dataclass(frozen=True, slots=True)
class PartOfUpdate:
    """What one ps does for an update.

    Attributes:
      ps: its number.
      variables: the numbers of those that it takes there, first those that it changes.
      changed: how many it changes.
      gradients: which it takes: the number of each, and which rows.
      data: the program.
    """

    ps: int
    variables: tuple[int, ...]
    changed: int
    gradients: tuple[tuple[int, tuple[int, int] | None], ...]
    data: bytes


@dataclass(slots=True)
class Division:
    """How an update is divided.

    Attributes:
      owners: of each variable of the optimizer, by its number, the number of the one that it belongs to; `None` for
        what belongs to none alone.
    """

    update: Update
    closed: Any
    owners: list[int | None]
    parts: list[PartOfUpdate] = field(default_factory=list)

    @classmethod
    def of(cls, update: Update, avals: Sequence[Any]) -> Division:
        """Traces an update, whose own variables, used variables and gradients have these shapes."""
        own, used = len(update.own), len(update.used)

        def run(*arrays: Any) -> list[Any]:
            new, state = update.run(list(arrays[: own + used]), list(arrays[own + used :]))
            return [jax.numpy.asarray(one) for one in (*new, *state)]

        with jax.enable_x64(True):
            closed = jaxprs.inlined(jax.make_jaxpr(run)(*avals), avals)
        owners: list[int | None] = []
        for output in closed.jaxpr.outvars[used:]:
            of = {at - own - used for at in jaxprs.needed(closed.jaxpr, [output]) if at >= own + used}
            owners.append(of.pop() if len(of) == 1 else None)
        return cls(update, closed, owners)

    def group(self, used: int) -> list[int]:
        """A variable that is updated and what the optimizer keeps of it, as numbers among all."""
        return [*(at for at, owner in enumerate(self.owners) if owner == used), len(self.update.own) + used]

    @property
    def is_mixed(self) -> bool:
        """Whether the update of a variable needs the values of others: then all must be on one ps."""
        own, count = len(self.update.own), len(self.update.own) + len(self.update.used)
        for used in range(len(self.update.used)):
            mine = self.group(used)
            needs = jaxprs.needed(self.closed.jaxpr, [self._outputs[at] for at in mine])
            if any(own <= at < count and at not in mine for at in needs):
                return True
        return False

    def goes_by_row(self, used: int) -> bool:
        """Whether the update of a variable treats each of its rows by itself."""
        shape = tuple(self.closed.jaxpr.invars[len(self.update.own) + used].aval.shape)
        if any(tuple(self.closed.jaxpr.invars[at].aval.shape) != shape for at in self.group(used)):
            return False
        try:
            jax.eval_shape(lambda: self._of_rows(used, None, 1))
        except NotByRow:
            return False
        return True

    def divide(self, entries: Sequence[Entry]) -> None:
        """Makes the parts, for variables (the optimizer's own, then those that it updates) that are where these say.

        Raises:
          NotDivided: a ps would need a variable that is elsewhere.
        """
        # Divided ones first: the other changes are also those of what all share, such as the count of updates.
        for used, entry in enumerate(entries[len(self.update.own) :]):
            if entry.is_divided:
                for at in range(len(entry.parts)):
                    self._add_rows(used, at, entries)
        for ps in sorted({ps for entry in entries for ps in entry.places}):
            mine = [at for at, entry in enumerate(entries) if ps in entry.places and not entry.is_divided]
            if mine:
                self._add(ps, mine, entries)

    @property
    def _outputs(self) -> list[Any]:
        """The new values of the variables: the optimizer's own first."""
        outputs, used = self.closed.jaxpr.outvars, len(self.update.used)
        return [*outputs[used:], *outputs[:used]]

    def _add(self, ps: int, mine: list[int], entries: Sequence[Entry]) -> None:
        """What a ps does for the variables that it has as a whole."""
        wanted = [self._outputs[at] for at in mine]
        needs = jaxprs.needed(self.closed.jaxpr, wanted)
        more = sorted(at for at in needs if at < len(entries) and at not in mine)
        if any(ps not in entries[at].places or entries[at].is_divided for at in more):
            raise NotDivided
        gradients = tuple((at - len(entries), None) for at in sorted(needs) if at >= len(entries))
        order = [*mine, *more, *(len(entries) + at for at, _ in gradients)]
        jaxpr, consts = jaxprs.giving(self.closed, wanted), self.closed.consts
        avals = [one.aval for one in self.closed.jaxpr.invars]

        def run(*arrays: Any) -> list[Any]:
            given = dict(zip(order, arrays, strict=True))
            filled = [given[at] if at in given else jax.numpy.zeros(a.shape, a.dtype) for at, a in enumerate(avals)]
            return list(jax.core.eval_jaxpr(jaxpr, consts, *filled))

        data = exported(run, [avals[at] for at in order], "cpu")
        numbers = tuple(entries[at].part_on(ps).number for at in (*mine, *more))
        self.parts.append(PartOfUpdate(ps, numbers, len(mine), gradients, data))

    def _add_rows(self, used: int, which: int, entries: Sequence[Entry]) -> None:
        """What a ps does for a part of a divided variable."""
        mine = self.group(used)
        parts: list[Part] = [entries[at].parts[which] for at in mine]
        ps, rows = parts[0].ps, parts[0].rows
        assert rows is not None
        needs = jaxprs.needed(self.closed.jaxpr, [self._outputs[at] for at in mine])
        more = sorted(at for at in needs if at < len(entries) and at not in mine)
        if any(ps not in entries[at].places or entries[at].is_divided for at in more):
            raise NotDivided
        count = rows[1] - rows[0]
        avals = [jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype) for one in parts]
        avals += [self.closed.jaxpr.invars[at].aval for at in more]
        avals.append(jax.ShapeDtypeStruct(avals[0].shape, self.closed.jaxpr.invars[len(entries) + used].aval.dtype))
        data = exported(lambda *arrays: self._of_rows(used, (more, arrays), count), avals, "cpu")
        numbers = (*(one.number for one in parts), *(entries[at].part_on(ps).number for at in more))
        self.parts.append(PartOfUpdate(ps, numbers, len(mine), ((used, rows),), data))

    def _of_rows(self, used: int, inputs: tuple[list[int], Sequence[Any]] | None, rows: int) -> list[Any]:
        """New values of some rows of a variable and of what is kept of it, of zeros where no inputs are given."""
        jaxpr, mine = self.closed.jaxpr, self.group(used)
        count = len(self.owners) + len(self.update.used)
        shape = tuple(jaxpr.invars[mine[-1]].aval.shape)
        if inputs is None:
            needs = jaxprs.needed(jaxpr, [self._outputs[at] for at in mine])
            more = sorted(at for at in needs if at < count and at not in mine)
            if any(tuple(jaxpr.invars[at].aval.shape) == shape for at in more):
                raise NotByRow  # of another variable
            order = [*mine, *more, count + used]
            avals = [jaxpr.invars[at].aval for at in order]
            arrays: Sequence[Any] = [
                jax.numpy.zeros((rows, *shape[1:]) if tuple(a.shape) == shape else a.shape, a.dtype) for a in avals
            ]
        else:
            order, arrays = [*mine, *inputs[0], count + used], inputs[1]
        given = {jaxpr.invars[at]: array for at, array in zip(order, arrays, strict=True)}
        return evaluated(jaxpr, self.closed.consts, given, [self._outputs[at] for at in mine], shape, rows)
