"""FinalOpsHook: a computation at the end of the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.runtime.overrides import override
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import Session


class FinalOpsHook(Hook):
    """Calls a function at the normal end of a session, while the values are still there.

    Args:
      final_ops: `final_ops(session) -> anything`.
    """

    def __init__(self, final_ops: Callable[[Any], Any]) -> None:
        self._final_ops = final_ops
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The result; `None` before."""
        return self._values

    @override
    def end(self, session: Session) -> None:
        self._values = self._final_ops(session)
