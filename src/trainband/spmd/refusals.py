"""Refusals: the gradients of a training run that were not finite."""

from __future__ import annotations

from trainband.errors import NonFiniteGradient
from trainband.runtime.waiting import Say

MOST = 100
"""Refusals in a row after which a replica gives up: its model is broken for good, and it would repeat this forever."""


class Refusals:
    """A counter that gives up after many refusals in a row.

    Args:
      say: told of the first in a row.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._in_a_row = 0
        self.total = 0
        """Refusals in the latest training run."""

    def start_training(self) -> None:
        """Begins a training run."""
        self.total = 0

    def none(self) -> None:
        """Notes a gradient that was finite."""
        self._in_a_row = 0

    def record(self, refusal: str) -> None:
        """Notes one that was not.

        Args:
          refusal: who refused it, and where.

        Raises:
          NonFiniteGradient: there are too many in a row.
        """
        self.total += 1
        self._in_a_row += 1
        if self._in_a_row == 1:
            self._say(f"{refusal}; the params are unchanged, training continues")
        if self._in_a_row >= MOST:
            raise NonFiniteGradient(
                f"{self._in_a_row} gradients in a row were not finite; the last: {refusal}. Check the data and the "
                "loss, or lower the learning rate."
            )
