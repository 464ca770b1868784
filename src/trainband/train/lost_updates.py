"""LostUpdates: the updates at a training's end that a ps has lost, because it died and came back without them."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import CheckpointError
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.strategies.engine import Stepper
from trainband.train.data_position import DataPosition


class LostUpdates:
    """Makes again what is missing at the end of a training.

    Args:
      say: where lines for people go.
      position: whose feed gives the batches.
      step: trains on a batch.
    """

    def __init__(self, say: Say, position: DataPosition, step: Callable[[PyTree], object]) -> None:
        self._say = say
        self._position = position
        self._step = step

    def make(self, engine: Stepper) -> None:
        """Makes what is missing, if anything is.

        Raises:
          CheckpointError: there are no batches left.
        """
        missing = engine.missing()
        if missing and self._position.feed is not None:
            self._say(f"a ps has lost its last {missing:,} updates; {engine.task} makes them again")
            for batch in self._position.feed:
                self._step(batch)
                if not engine.missing():
                    return
        if engine.missing():
            raise CheckpointError(
                f"a ps has lost its last {missing:,} updates since they were made, and there are no batches left to "
                "make them again; start the job again: it resumes from its newest checkpoint."
            )
