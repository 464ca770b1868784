"""What replicas assign to variables, each for itself, until it becomes one value: the sum, the mean or the first's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.aggregation import VariableAggregation
from trainband.compat.tf2.eager.captured import Capture
from trainband.compat.tf2.eager.execute import cast_to, convert
from trainband.compat.tf2.eager.tensor import Tensor

SEED = "seed_generator_state"
"""The name of the variables from which Keras's layers draw their random numbers."""

SUM, MEAN, FIRST = "sum", "mean", "first"


def aggregation_of(variable: Any) -> str:
    """How the values of replicas become one.

    Raises:
      ValueError: the variable does not say.
    """
    said = getattr(variable, "aggregation", None)
    if isinstance(said, str) or not hasattr(variable, "constraint") or type(variable).__module__.startswith("keras"):
        # Keras's: those of metrics say "sum", those of layers mostly nothing.
        if said == "sum":
            return SUM
        return MEAN if said != "only_first_replica" and convert(variable).dtype.is_floating else FIRST
    found = {
        VariableAggregation.SUM: SUM,
        VariableAggregation.MEAN: MEAN,
        VariableAggregation.ONLY_FIRST_REPLICA: FIRST,
    }.get(said)  # type: ignore[arg-type]
    if found is None:
        raise ValueError(
            "You must specify an aggregation method to update a variable in replica context: give "
            f"tf.Variable(..., aggregation=tf.VariableAggregation.SUM) or another one to {variable.name}."
        )
    return found


def is_seed(variable: Any) -> bool:
    """Whether a layer of Keras's draws its random numbers from it."""
    return getattr(variable, "name", "") == SEED


def offset(tensor: Tensor, replica_id: Any) -> Tensor:
    """What a replica adds to a seed, so that it draws other numbers than the first one."""
    return convert(np.asarray([0, 0x9E3779B1], tensor.aval[1])) * cast_to(replica_id, tensor.dtype)


class Own(Capture):
    """What one replica assigns.

    Args:
      replica_id: its number among all.
    """

    def __init__(self, replica_id: int) -> None:
        super().__init__()
        self.replica_id = replica_id
        self.values: dict[int, Tensor] = {}
        """Its assigned values, by the variable's identity."""

    def value(self, variable: Any, own: Tensor) -> Tensor | None:
        super().value(variable, own)
        found = self.values.get(id(variable))
        if found is None and self.replica_id and is_seed(variable):
            found = own + offset(own, self.replica_id)
        return found

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        aggregation_of(variable)
        super().assigned(variable, tensor)
        self.values[id(variable)] = tensor
        return True


def merge(strategy: Any, owns: Sequence[Own], have_examples: Sequence[bool]) -> None:
    """Gives the variables that replicas have assigned the values that come of it.

    Args:
      have_examples: of each replica of this process, whether its inputs have rows. Where they have none, a mean such as
        a moving average is not a number, and does not count.
    """
    written = {key: variable for own in owns for key, variable in own.written.items()}
    if not written:
        return
    kinds = {key: aggregation_of(variable) for key, variable in written.items()}
    added = [key for key, kind in kinds.items() if kind != FIRST]
    before = {key: convert(variable) for key, variable in written.items()}
    given = []
    for own, counts in zip(owns, have_examples, strict=True):
        mine = [Tensor(np.asarray(counts, np.int32))]
        for key in added:
            value = own.values.get(key, before[key])
            if kinds[key] == SUM:
                mine.append(value - before[key])
            else:
                mine.append(value if counts else Tensor(np.zeros(*before[key].aval)))
        given.append(mine)
    count, *totals = strategy.sums(given) if added else [None]
    sums = dict(zip(added, totals, strict=True))
    counted = 0 if count is None else int(count)
    for key, variable in written.items():
        if kinds[key] == FIRST:
            new = owns[0].values.get(key, before[key])
            if is_seed(variable):
                new = new - offset(new, owns[0].replica_id)
            else:
                new = strategy.from_first(new)
        elif kinds[key] == SUM:
            new = before[key] + sums[key]
        elif counted:
            new = sums[key] / convert(np.asarray(counted, before[key].aval[1]))
        else:
            new = before[key]
        variable.give(new)
