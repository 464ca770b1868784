"""SecondOrStepTimer: tells when something is due, by seconds or steps."""

from __future__ import annotations

import time


class SecondOrStepTimer:
    """Tells when something is due, by seconds or by steps."""

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if every_secs is None and every_steps is None:
            raise ValueError("Either every_secs or every_steps should be provided.")
        if every_secs is not None and every_steps is not None:
            raise ValueError("Can not provide both every_secs and every_steps.")
        self._secs, self._steps = every_secs, every_steps
        self._last_step: int | None = None
        self._last_time = 0.0

    def reset(self) -> None:
        """Starts over."""
        self._last_step = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is due at a step."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._secs is not None:
            return time.time() >= self._last_time + self._secs
        return step >= self._last_step + (self._steps or 1)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record that it was done at a step; return the seconds and steps since the last time."""
        now = time.time()
        since = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return since

    def last_triggered_step(self) -> int | None:
        """Return the step at which it was last done."""
        return self._last_step
