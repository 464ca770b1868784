"""Timer: when something is due that happens every so many steps, or seconds."""

from __future__ import annotations

EVERY_STEPS = 100
"""Where nobody says how often."""


def every(steps: int | None, secs: float | None) -> int | None:
    """So many steps, or `EVERY_STEPS` where neither is given."""
    return EVERY_STEPS if steps is None and secs is None else steps


class Timer:
    """Says when something is due that happens every so many steps, or seconds.

    Source: TensorFlow's SecondOrStepTimer.
    """

    def __init__(self, owner: str, *, every_steps: int | None, every_secs: float | None) -> None:
        """Exactly one of the two is given; `owner` names the hook in the error.

        Raises:
          ValueError: both or none, or not more than 0.
        """
        if (every_steps is None) == (every_secs is None):
            raise ValueError(f"{owner}: give every so many steps, or every so many seconds, and not both.")
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
        """When it was last due, `None` before the first time."""
        return self._last_step

    def due(self, step: int, now: float) -> bool:
        """Whether it is time; the first time always is."""
        if self._last_step is None:
            return True
        if self._steps is not None:
            return step // self._steps > self._last_step // self._steps
        assert self._secs is not None
        return now - self._last_s >= self._secs

    def note(self, step: int, now: float) -> None:
        """It was done."""
        self._last_step, self._last_s = step, now
