"""DataPosition: where a session is in its data, which its checkpoints keep as part of the worker state."""

from __future__ import annotations

from collections import deque

from trainband.strategies.engine import CheckpointSource, Engine, Stepper
from trainband.train.feed import Feed
from trainband.train.passes import Mark, Position

CALLS = 3
"""Of how many calls of the engine the positions are kept: a checkpoint may speak of the call before the last."""


class DataPosition:
    """Follows the feed of one session.

    Args:
      is_saved: whether there are checkpoints that want to know.
    """

    def __init__(self, *, is_saved: bool) -> None:
        self.is_saved = is_saved
        """Whether there are checkpoints that want to know."""
        self.feed: Feed | None = None
        """What is followed."""
        self._marks: deque[Mark | None] = deque(maxlen=CALLS)

    @staticmethod
    def found(engine: CheckpointSource, training: int) -> Position | None:
        """Where a training was when the checkpoint was written from which this task resumes."""
        state = engine.worker_state
        if state is None or state.training != training or not state.position:
            return None
        return Position.from_json(state.position)

    def follow(self, feed: Feed, engine: Stepper) -> None:
        """Follows another feed."""
        self.feed = feed
        self._marks = deque(self._marks, maxlen=CALLS * engine.steps_per_execution)
        self._note(1)

    def advance(self, steps: int) -> None:
        """So many steps were made on what the feed gave last."""
        if self.feed is not None:
            self.feed.trained(steps)
            self._note(steps)

    def leave(self, engine: Engine, training: int, behind: int = 0) -> None:
        """Leaves with the engine the position of now, or of so many steps ago."""
        position, state = "", engine.worker_state
        behind = max(behind, engine.unused)
        if self.feed is not None and self._marks:
            mark = self._marks[max(0, len(self._marks) - 1 - behind)]
            position = self.feed.position_at(mark).to_json()
        elif state is not None and state.training >= training:
            # This training was over before it began again: what it knows of the data is what it has found.
            training, position = state.training, state.position
        engine.leave_worker_state(training, position, behind)

    def _note(self, steps: int) -> None:
        if self.feed is not None and self.is_saved and steps:
            self._marks.extend(self.feed.marks[-steps:])
