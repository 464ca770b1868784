"""HookLoop: one run of a session, with hooks before and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainband.compat.tf1.graphs.config import RunOptions
from trainband.compat.tf1.protos.run_metadata import RunMetadata
from trainband.compat.tf1.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

Run = Callable[[Any, Any, Any, Any], Any]
"""Of fetches, feeds, options and metadata: the values."""


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

    def run(
        self, session: Any, run: Run, fetches: Any, feed_dict: Any = None, options: Any = None, metadata: Any = None
    ) -> tuple[Any, bool]:
        """(the values of what is asked for, whether a hook has asked for the end).

        Args:
          session: what the hooks see.
          run: runs what is asked for together with what the hooks want.

        Raises:
          RuntimeError: two of the hooks and the caller feed the same tensor.
        """
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), session)
        options = RunOptions(**vars(options)) if options is not None else RunOptions()
        metadata = RunMetadata() if metadata is None else metadata
        feeds: dict[Any, Any] = {}
        wanted: list[Any] = []
        asked: list[bool] = []
        for hook in self.hooks:
            request = hook.before_run(context)
            asked.append(request is not None and request.fetches is not None)
            if request is None:
                continue
            if request.fetches is not None:
                wanted.append(request.fetches)
            if request.feed_dict:
                _check_apart(feeds, request.feed_dict, "Same tensor is fed by two hooks.")
                feeds |= request.feed_dict
            if request.options is not None:
                _merge(options, request.options)
        if feed_dict:
            _check_apart(feeds, feed_dict, "Same tensor is fed by a SessionRunHook and user.")
            feeds |= feed_dict
        found = run([fetches, *wanted], feeds, options, metadata)
        rest = iter(found[1:])
        for hook, has_fetches in zip(list(self.hooks), asked, strict=True):
            hook.after_run(context, SessionRunValues(next(rest) if has_fetches else None, options, metadata))
        return found[0], context.stop_requested

    def end(self, session: Any) -> None:
        """The session ends as it should."""
        for hook in self.hooks:
            hook.end(session)


def _check_apart(feeds: Mapping[Any, Any], more: Mapping[Any, Any], text: str) -> None:
    if both := feeds.keys() & more.keys():
        raise RuntimeError(f"{text} Conflict(s): {', '.join(map(str, both))}")


def _merge(options: RunOptions, more: Any) -> None:
    """Adds a hook's options: of two levels or timeouts the higher."""
    for name, value in vars(more).items():
        before = vars(options).get(name)
        numbers = isinstance(value, int | float) and isinstance(before, int | float)
        setattr(options, name, max(before, value) if numbers else value)
