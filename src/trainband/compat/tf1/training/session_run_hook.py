"""SessionRunHook: what happens beside the runs of a monitored session, and what it sees of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SessionRunArgs:
    """What a hook adds to the next run: fetches and feeds."""

    fetches: Any = None
    feed_dict: Any = None
    options: Any = None


@dataclass(frozen=True, slots=True)
class SessionRunValues:
    """What a hook gets from a run: the values of its fetches."""

    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext:
    """A run as a hook sees it."""

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        """The caller's request."""
        self.session = session
        """The session, to run other things in."""
        self._stop = False

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked for the end."""
        return self._stop

    def request_stop(self) -> None:
        """Ends the session's loop after this run."""
        self._stop = True


class SessionRunHook:
    """Called around the runs of a monitored session. Override what you need; by default, all methods do nothing."""

    def begin(self) -> None:
        """Once, before the graph is finalized."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """When there is a session, with values in all variables."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Before a run: what it wants of that."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """After a run."""

    def end(self, session: Any) -> None:
        """At the end, unless an exception ended the session."""
