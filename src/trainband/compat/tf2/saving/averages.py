"""`tf.train.ExponentialMovingAverage`: averages of variables over the course of a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.saving.trackable import Tracked


class ExponentialMovingAverage(Tracked):
    """Averages in which what is older counts less.

    Args:
      decay: how much of an average stays at each step.
      num_updates: the number of steps so far, which makes the decay smaller at first.
      zero_debias: not supported.
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        if zero_debias:
            raise NotImplementedError("ExponentialMovingAverage takes zero_debias=False")
        self.name = name
        self._decay = decay
        self._steps = num_updates
        self._averages: dict[int, tuple[Any, Variable]] = {}

    def tracked(self) -> Iterator[tuple[str, Any]]:
        """The averages, by number."""
        yield "_averages", [average for _, average in self._averages.values()]

    def apply(self, var_list: Sequence[Any] | None = None) -> None:
        """Move the averages towards the values that variables have.

        Raises:
          ValueError: no variables are given.
        """
        if var_list is None:
            raise ValueError("When eager execution is enabled, `var_list` must be given.")
        decay = float(self._decay)
        if self._steps is not None:
            steps = float(self._steps)
            decay = min(decay, (1.0 + steps) / (10.0 + steps))
        for one in var_list:
            if id(one) not in self._averages:
                self._averages[id(one)] = one, Variable(one, trainable=False, name=self.name)
            average = self._averages[id(one)][1]
            average.assign_sub((average.value() - one) * (1.0 - decay))

    def average(self, var: Any) -> Variable | None:
        """The average of a variable; `None` if there is none."""
        found = self._averages.get(id(var))
        return None if found is None else found[1]

    def average_name(self, var: Any) -> str:
        """What it is called."""
        return f"{var.name.partition(':')[0]}/{self.name}"
