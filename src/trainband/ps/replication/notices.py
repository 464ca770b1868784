"""Notices: what people read of how one replica is kept in step with the other."""

from __future__ import annotations

from trainband.runtime import Clock
from trainband.runtime.waiting import Say, Waiting


class Notices:
    """Of one replica.

    Args:
      say: where lines for people go.
      clock: this task's.
    """

    def __init__(self, say: Say, clock: Clock) -> None:
        self.say = say
        self._clock = clock
        self._refusal = ""
        self._waiting: Waiting | None = None

    def tell(self, text: str) -> None:
        """Says what goes wrong, once for as long as it is the same."""
        if text != self._refusal:
            self._refusal = text
            self.say(text)

    def begin_wait(self) -> Waiting:
        """The wait for the other replica, which begins where there was none."""
        self._waiting = self._waiting or Waiting(None, self.say, self._clock)
        return self._waiting

    def end_wait(self) -> None:
        """The other replica is not waited for any more."""
        self._waiting = None
