"""Hook: a user's actions at the steps of a training run, in five small methods."""

from __future__ import annotations

from typing import Any

from trainband.strategies.base import StepReport


class Hook:
    """Actions at the steps of one session. Override the methods you need; each does nothing by default.

    The names and their meaning are those of TensorFlow's SessionRunHook. The session is the `MonitoredSession` that
    runs the hook. A hook runs on every worker that gives it to its session; one that acts for the whole job must check
    `session.is_chief` each time: if the chief is lost, another worker replaces it. An exception from any method ends
    the session with that error.
    """

    def begin(self, session: Any) -> None:
        """Called when the job is joined and its values are there; no step has been made."""

    def before_run(self, session: Any) -> None:
        """Called before each step."""

    def after_run(self, session: Any, report: StepReport) -> None:
        """Called after each step. Reading the report's arrays waits for the device."""

    def end(self, session: Any) -> None:
        """Called when the session ends normally: the values are still there. Not called after an error."""

    def close(self) -> None:
        """Called when the session is over, normally or not: close files and threads. Most hooks need none of this."""
