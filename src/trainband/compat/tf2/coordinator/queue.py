"""The closures that wait, and those that run: what is told of them, and who waits for them."""

from __future__ import annotations

import threading
from collections import deque

from trainband.compat.tf2.coordinator.closures import Closure

MOST = 4096
"""Closures that wait; who schedules more waits for room."""


class ClosureQueue:
    """Thread-safe. An error of a closure cancels all that wait, and is raised once, where the script looks next."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Closure] = deque()
        self._running = 0
        self._idle = 0
        self._error: BaseException | None = None
        self._is_closed = False

    def put(self, closure: Closure) -> None:
        """Adds a closure, when there is room.

        Raises:
          Exception: what an earlier one has raised.
        """
        with self._condition:
            self._raise()
            while len(self._waiting) >= MOST:
                self._condition.wait()
                self._raise()
            self._waiting.append(closure)
            self._condition.notify()

    def take(self, timeout_s: float) -> Closure | None:
        """The next closure to run, `None` where none has come in time; without waiting, where others wait for it."""
        with self._condition:
            if timeout_s and not self._waiting:
                self._idle += 1
                self._condition.wait(timeout_s)
                self._idle -= 1
            if len(self._waiting) <= (0 if timeout_s else self._idle):
                return None
            self._running += 1
            closure = self._waiting.popleft()
            if len(self._waiting) == MOST - 1:
                self._condition.notify_all()
            return closure

    def give_back(self, closure: Closure) -> None:
        """A closure was not done: it comes next."""
        with self._condition:
            self._running -= 1
            if self._error is None:
                self._waiting.appendleft(closure)
            else:
                closure.value.cancel()
            self._condition.notify_all()

    def done(self) -> None:
        """A closure has run."""
        with self._condition:
            self._running -= 1
            if not self._running and not self._waiting:
                self._condition.notify_all()

    def failed(self, closure: Closure, error: BaseException) -> None:
        """A closure has failed."""
        with self._condition:
            closure.value.fail(error)
            self._running -= 1
            self._fail(error)

    def fail(self, error: BaseException) -> None:
        """Nothing can run any more, or not as it was meant to."""
        with self._condition:
            self._fail(error)

    @property
    def is_done(self) -> bool:
        """Whether nothing waits or runs. Raises what a closure has raised."""
        with self._condition:
            self._raise()
            return not self._waiting and not self._running

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing waits or runs; returns whether that is so.

        Raises:
          Exception: what a closure has raised.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._is_quiet(), timeout_s)
            self._raise()
            return not self._waiting and not self._running

    def close(self) -> None:
        """Cancels what waits, and has those that take end."""
        with self._condition:
            self._is_closed = True
            self._cancel()
            self._condition.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether nobody takes any more."""
        return self._is_closed

    def _is_quiet(self) -> bool:
        return not self._running and (not self._waiting or self._error is not None)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._cancel()
        self._condition.notify_all()

    def _cancel(self) -> None:
        while self._waiting:
            self._waiting.popleft().value.cancel()

    def _raise(self) -> None:
        if self._error is not None:
            self._condition.wait_for(lambda: not self._running)
            error, self._error = self._error, None
            raise error
