"""Job: whether the job of a server has begun and ended, for who waits for its end."""

from __future__ import annotations

import threading
import time

from trainband.runtime.waiting import Say, Waiting


class Job:
    """What the streams of a server tell its main thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._coordinators = 0
        self._has_ended = False

    def coordinator_came(self) -> None:
        """A coordinator has opened its stream."""
        with self._condition:
            self._coordinators += 1
            self._has_ended = False

    def coordinator_went(self) -> None:
        """Its stream is over."""
        with self._condition:
            self._coordinators -= 1
            self._condition.notify_all()

    def end(self) -> None:
        """The coordinator has said that the job has ended."""
        with self._condition:
            self._has_ended = True
            self._condition.notify_all()

    def wait(self, name: str, say: Say, absent_s: float) -> None:
        """Waits until the job has ended.

        Raises:
          DeadlineExceeded: no coordinator was there for `absent_s` seconds.
        """
        waiting: Waiting | None = None
        while True:
            with self._condition:
                if self._has_ended:
                    return
                if self._coordinators:
                    waiting = None
                else:
                    waiting = waiting or Waiting(absent_s, say, time.monotonic)
                self._condition.wait(0.5)
            if waiting is not None:
                waiting.check(f"the coordinator to come to {name}", "check that the chief's script runs")
