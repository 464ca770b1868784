"""Waiting with a deadline and regular notices of what it waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from trainband.errors import DeadlineExceeded
from trainband.runtime.base import Clock
from trainband.runtime.formatting import CONTINUED, LINE_PREFIX, printable
from trainband.runtime.logs import log_if_configured

Say = Callable[[str], None]
"""Shows one line to the user."""

FIRST_NOTICE_S = 2.0
NOTICE_EVERY_S = 5.0


def say_on_stderr(text: str) -> None:
    """The default `Say`: prints a line, or passes it to the logger `trainband` if the program has configured it.

    It may include text from other tasks: control characters become visible, and lines after the first are indented, so
    that none looks like another line of trainband.
    """
    text = printable(text, newline=f"\n{CONTINUED}")
    if log_if_configured(text):
        return
    sys.stderr.write(f"{LINE_PREFIX}{text}\n")  # one write, because several threads may do so at once
    sys.stderr.flush()


class Waiting:
    """A wait that reports what it waits for after 2 s and then every 5 s, and gives up at its deadline.

    Args:
      timeout_s: seconds until `check` raises; `None` waits forever, but not silently.
      say: where the notices go.
      clock: monotonic seconds.
    """

    def __init__(self, timeout_s: float | None, say: Say, clock: Clock = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._say = say
        self._clock = clock
        self._start = clock()
        self._next = self._start + FIRST_NOTICE_S
        self._deadline = None if timeout_s is None else self._start + timeout_s

    @property
    def waited_s(self) -> float:
        """Seconds since this wait began."""
        return self._clock() - self._start

    def extend(self) -> None:
        """Restarts the timeout, because what it waits for is known to be alive."""
        if self._timeout_s is not None:
            self._deadline = self._clock() + self._timeout_s

    def check(self, waiting_for: str, advice: str) -> None:
        """Prints the notice when it is due and raises at the deadline. Call it repeatedly while waiting.

        Args:
          waiting_for: completes "waiting for ...".
          advice: a clause that says what to do, for the error.

        Raises:
          DeadlineExceeded: the timeout has passed.
        """
        now = self._clock()
        waited = now - self._start
        if self._deadline is not None and now >= self._deadline:
            raise DeadlineExceeded(f"waited {waited:.1f} s for {waiting_for}; {advice}.")
        if now >= self._next:
            self._next = now + NOTICE_EVERY_S
            self._say(f"waiting for {waiting_for} ({waited:.0f} s)")
