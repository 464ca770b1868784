"""HookLoop: one run of a session, with hooks before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

Run = Callable[[Any, Any], Any]
"""Of fetches and feeds: the values."""


class HookLoop:
    """Runs hooks around the runs of a session, in their order.

    Args:
      hooks: what happens beside the runs; more may be added later.
    """

    def __init__(self, hooks: Sequence[SessionRunHook] = ()) -> None:
        self.hooks = list(hooks)
        """What happens beside the runs."""

    def begin(self) -> None:
        """Before there is a session: hooks may still record operations."""
        for hook in self.hooks:
            hook.begin()

    def created(self, session: Any, coordinator: Any) -> None:
        """There is a session, with values in all variables."""
        for hook in self.hooks:
            hook.after_create_session(session, coordinator)

    def run(self, session: Any, run: Run, fetches: Any, feed_dict: Any = None) -> tuple[Any, bool]:
        """(the values of what is asked for, whether a hook has asked for the end).

        Args:
          session: what the hooks see.
          run: runs what is asked for together with what the hooks want.
        """
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), session)
        feeds = feed_dict
        wanted: list[Any] = []
        asked: list[bool] = []
        for hook in self.hooks:
            request = hook.before_run(context)
            asked.append(request is not None and request.fetches is not None)
            if request is not None and request.fetches is not None:
                wanted.append(request.fetches)
            if request is not None and request.feed_dict:
                feeds = {**(feeds or {}), **request.feed_dict}
        found = run([fetches, *wanted], feeds)
        rest = iter(found[1:])
        for hook, has_fetches in zip(list(self.hooks), asked, strict=True):
            hook.after_run(context, SessionRunValues(next(rest) if has_fetches else None))
        return found[0], context.stop_requested

    def end(self, session: Any) -> None:
        """The session ends as it should."""
        for hook in self.hooks:
            hook.end(session)
