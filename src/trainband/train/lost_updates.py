"""LostUpdates: the updates at a training run's end that a ps has lost, because it died and came back without them."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import CheckpointError
from trainband.job.engine import Engine
from trainband.model.variables import PyTree
from trainband.runtime.waiting import Say
from trainband.train.data_position import DataPosition


class LostUpdates:
    """Repeats the updates that are missing at the end of a training run.

    Args:
      say: receives lines for people.
      position: provides the feed with the batches.
    """

    def __init__(self, say: Say, position: DataPosition) -> None:
        self._say = say
        self._position = position

    def make(self, engine: Engine, run: Callable[[PyTree], object]) -> None:
        """Repeats the missing updates, if any.

        `run`: trains on a batch.

        Raises:
          CheckpointError: there are no batches left.
        """
        steps = engine.steps
        missing = steps.missing()
        if missing and self._position.feed is not None:
            self._say(f"a ps has lost its last {missing:,} updates; {engine.peers.task} repeats them")
            for batch in self._position.feed:
                run(batch)
                if not steps.missing():
                    return
        if steps.missing():
            raise CheckpointError(
                f"a ps has lost its last {missing:,} updates since they were made, and there are no batches left to "
                "repeat them; restart the job: it resumes from its newest checkpoint."
            )
