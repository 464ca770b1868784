"""Hook: what a user does at the steps of a training, in four small methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainband.strategies.base import StepReport
    from trainband.train.session import MonitoredSession


class Hook:
    """What happens beside the steps of one session. Override what is wanted; each does nothing.

    The names and their meaning are those of TensorFlow's SessionRunHook. A hook runs on every worker that gives it
    to its session; one that speaks for the job looks at `session.is_chief` each time: another worker takes the chief's
    place where that is lost. An exception out of any of them ends the session with that error.
    """

    def begin(self, session: MonitoredSession) -> None:
        """The job is joined and its values are there; no step has been made."""

    def before_run(self, session: MonitoredSession) -> None:
        """A step is about to be made."""

    def after_run(self, session: MonitoredSession, report: StepReport) -> None:
        """A step was made. Reading the report's arrays waits for the device."""

    def end(self, session: MonitoredSession) -> None:
        """The session ends as it should: the values are still there. Not called after an error."""

    def close(self) -> None:
        """The session is over, well or not: let go of files and threads. Most hooks need none of this."""


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
