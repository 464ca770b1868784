"""Reminder: reports a lasting condition once, and again only after a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable

AGAIN_S = 60.0


class Reminder:
    """Filter of repeated messages.

    Args:
      clock: monotonic seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._reported: dict[Hashable, tuple[str, float]] = {}

    def report(self, about: Hashable, text: str) -> None:
        """Says it, unless it recently was the last text about this."""
        last, when = self._reported.get(about, ("", 0.0))
        if text != last or self._clock() - when >= AGAIN_S:
            self._reported[about] = (text, self._clock())
            self._say(text)
