"""DataPosition: a session's position in its data, which its checkpoints keep as part of the worker state."""

from __future__ import annotations

from collections import deque

from trainband.job.engine import Checkpoints, Engine, Steps
from trainband.train.batch_feed import Feed
from trainband.train.passes import Mark, Position

CALLS = 3
"""For how many calls of the engine positions are kept: a checkpoint may refer to the call before the last."""


class DataPosition:
    """Follows the feed of one session.

    Args:
      is_saved: whether checkpoints need the position.
    """

    def __init__(self, *, is_saved: bool) -> None:
        self.is_saved = is_saved
        """Whether checkpoints need the position."""
        self.feed: Feed | None = None
        """The feed to follow."""
        self._marks: deque[Mark | None] = deque(maxlen=CALLS)

    @staticmethod
    def found(checkpoints: Checkpoints, training: int) -> Position | None:
        """Returns a training run's position in the checkpoint from which this task resumes."""
        state = checkpoints.worker_state
        if state is None or state.training != training or not state.position:
            return None
        return Position.from_json(state.position)

    def follow(self, feed: Feed, steps: Steps) -> None:
        """Follows another feed."""
        self.feed = feed
        self._marks = deque(self._marks, maxlen=CALLS * steps.steps_per_execution)
        self._record_marks(1)

    def advance(self, steps: int) -> None:
        """Records that this many steps were made on the feed's last item."""
        if self.feed is not None:
            self.feed.trained(steps)
            self._record_marks(steps)

    def store(self, engine: Engine, training: int, behind: int = 0) -> None:
        """Stores the current position with the engine, or that of `behind` steps ago."""
        position, state = "", engine.checkpoints.worker_state
        behind = max(behind, engine.steps.training.unused)
        if self.feed is not None and self._marks:
            mark = self._marks[max(0, len(self._marks) - 1 - behind)]
            position = self.feed.position_at(mark).to_json()
        elif state is not None and state.training >= training:
            # This training was over before it began again: its only position is the restored one.
            training, position = state.training, state.position
        engine.checkpoints.store_worker_state(training, position, behind)

    def _record_marks(self, steps: int) -> None:
        if self.feed is not None and self.is_saved and steps:
            self._marks.extend(self.feed.marks[-steps:])
