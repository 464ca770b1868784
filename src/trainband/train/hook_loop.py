"""HookLoop: runs the hooks of a session around its steps, in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from trainband.errors import YourError
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook


def require_hooks(hooks: object) -> None:
    """Refuses anything but a sequence of hooks.

    Raises:
      YourError: it is a single hook or not a sequence, or it contains a class.
    """
    is_one = isinstance(hooks, Hook)
    wrong = hooks if is_one else next((hook for hook in hooks if isinstance(hook, type)), None)  # type: ignore[attr-defined]
    if wrong is not None:
        name = wrong.__name__ if isinstance(wrong, type) else type(wrong).__name__
        raise YourError(f"hooks must be a sequence of hooks, such as hooks=[{name}(...)], got {hooks!r}.")


class HookLoop:
    """Runs hooks around the steps of a session, independent of how steps are made.

    Args:
      hooks: run in this order.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.hooks = tuple(hooks)
        """The hooks in order."""
        self.is_after_step = False
        """Whether hooks are running for a step."""

    def begin(self, session: Any) -> None:
        """Runs `begin`: the session has begun; no step has been made."""
        for hook in self.hooks:
            hook.begin(session)

    def run(self, session: Any, step: Callable[[], StepReport]) -> StepReport:
        """Makes a step, with the hooks before and after it."""
        for hook in self.hooks:
            hook.before_run(session)
        report = step()
        self.is_after_step = True
        try:
            for hook in self.hooks:
                hook.after_run(session, report)
        finally:
            self.is_after_step = False
        return report

    def end(self, session: Any, *, last: Collection[Hook] = ()) -> None:
        """Runs `end`: the session ends normally; the hooks in `last` come after all others."""
        for hook in sorted(self.hooks, key=lambda hook: hook in last):
            hook.end(session)
