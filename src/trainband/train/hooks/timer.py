"""Timer: when an action is due that is repeated after a number of steps or seconds."""

from __future__ import annotations

EVERY_STEPS = 100
"""The default interval."""


def every(steps: int | None, secs: float | None) -> int | None:
    """Returns `steps`, or `EVERY_STEPS` if neither is given."""
    return EVERY_STEPS if steps is None and secs is None else steps


class Timer:
    """Decides when a repeated action is due, by steps or by seconds.

    Source: TensorFlow's SecondOrStepTimer.
    """

    def __init__(self, owner: str, *, every_steps: int | None, every_secs: float | None) -> None:
        """Exactly one interval is given; `owner` names the hook in the error.

        Raises:
          ValueError: both or neither are given, or the value is not positive.
        """
        if (every_steps is None) == (every_secs is None):
            raise ValueError(f"{owner}: give an interval in steps or in seconds, not both.")
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"{owner}: the number of steps must be at least 1, got {every_steps}.")
        if every_secs is not None and not every_secs > 0:
            raise ValueError(f"{owner}: the number of seconds must be > 0, got {every_secs}.")
        self._steps = every_steps
        self._secs = every_secs
        self._last_step: int | None = None
        self._last_s = 0.0

    @property
    def last_step(self) -> int | None:
        """The step at which the action was last recorded; `None` before the first time."""
        return self._last_step

    def due(self, step: int, now: float) -> bool:
        """Whether the action is due; always true until it has been recorded once."""
        if self._last_step is None:
            return True
        if self._steps is not None:
            return step // self._steps > self._last_step // self._steps
        assert self._secs is not None
        return now - self._last_s >= self._secs

    def record(self, step: int, now: float) -> None:
        """Records that the action was done."""
        self._last_step, self._last_s = step, now
