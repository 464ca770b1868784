"""Hook: what a user does at the steps of a training, in five small methods."""

from __future__ import annotations

from typing import Any

from trainband.strategies.base import StepReport


class Hook:
    """What happens beside the steps of one session. Override what is wanted; each does nothing.

    The names and their meaning are those of TensorFlow's SessionRunHook. The session is the `MonitoredSession` that
    runs the hook. A hook runs on every worker that gives it to its session; one that speaks for the job looks at
    `session.is_chief` each time: if the chief is lost, another worker takes its place. An exception out of any of them
    ends the session with that error.
    """

    def begin(self, session: Any) -> None:
        """The job is joined and its values are there; no step has been made."""

    def before_run(self, session: Any) -> None:
        """A step is about to be made."""

    def after_run(self, session: Any, report: StepReport) -> None:
        """A step was made. Reading the report's arrays waits for the device."""

    def end(self, session: Any) -> None:
        """The session ends as it should: the values are still there. Not called after an error."""

    def close(self) -> None:
        """The session is over, well or not: let go of files and threads. Most hooks need none of this."""
