"""Activity: what this process does and waits for, as its heartbeats tell the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import jax

from trainband.runtime.waiting import FIRST_NOTICE_S, NOTICE_EVERY_S, Say

EXCHANGE_ERRORS = frozenset(
    ("gloo", "nccl", "connection", "unavailable", "deadline", "collective", "socket", "peer", "broken pipe")
)
"""What is found in the errors of XLA's exchanges, when a peer has gone."""

OF_ALL = -1


class Wait(NamedTuple):
    """What a process waits for.

    Attributes:
      key: where others must leave a value.
      about: what it does, as in «worker:0 {about}».
      of: which process must leave one, or `OF_ALL`.
    """

    key: str
    about: str
    of: int


def _is_of_an_exchange(exc: Exception) -> bool:
    """Whether XLA says that an exchange has failed: with a code first, such as UNKNOWN; sometimes as a ValueError."""
    text = str(exc)
    is_xlas = isinstance(exc, jax.errors.JaxRuntimeError | ValueError) and text.partition(":")[0].isupper()
    return is_xlas and any(word in text.lower() for word in EXCHANGE_ERRORS)


class Watched:
    """See `Activity.watched`. A class, because a step enters it twice, and a generator takes a microsecond more."""

    __slots__ = ("_activity",)

    def __init__(self, activity: Activity) -> None:
        self._activity = activity

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        activity = self._activity
        try:
            if isinstance(exc, Exception) and _is_of_an_exchange(exc):
                raise activity.explained(exc) from exc
        finally:
            activity.left()


class Activity:
    """What this process does.

    Args:
      explained: gives the reason why an exchange has failed.
      say: where lines for people go.
    """

    def __init__(self, explained: Callable[[Exception], Exception], say: Say) -> None:
        self.explained = explained
        self._say = say
        self.step = (0, 0)
        """In which training this process is, and at which call of it."""
        self.doing = ""
        """What it does for which the others should wait, in words."""
        self.wait: Wait | None = None
        """What it waits for, if for a value."""
        self.waits_since: float | None = None
        """When it began to wait for others, in an exchange or for a value."""
        self.said_at = 0.0
        """When it last said for whom."""
        self.settled = False
        """Whether a step is computed: what is compiled is compiled, and the next ones are as fast."""
        self._exchanges = 0
        """How many contexts of `watched` this process is in."""
        self._watched = Watched(self)

    @contextlib.contextmanager
    def waiting(self, wait: Wait) -> Iterator[None]:
        """A context in which this process waits for a value of others."""
        waited, self.waits_since = self.waits_since, time.monotonic()
        self.said_at = self.waits_since
        self.wait = wait
        try:
            yield
        finally:
            self.waits_since = None if waited is None else time.monotonic()
            self.wait = None

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A context in which this process does something for which the others should wait."""
        before, self.doing = self.doing, what
        try:
            yield
        finally:
            self.doing = before

    def watched(self, training: int = 0, call: int = 0) -> Watched:
        """A context for an exchange with all others, in a call of a training, counted from 1.

        Raises:
          PeerError: it has failed because one of them is gone.
        """
        self.step = (training, call) if training else self.step
        self._exchanges += 1
        self.waits_since = self.said_at = time.monotonic()
        return self._watched

    def left(self) -> None:
        """Says that an exchange is over."""
        self._exchanges -= 1
        self.waits_since = time.monotonic() if self._exchanges else None

    def say_now_and_then(self, whom: str) -> None:
        """Says whom this process waits for, now and then."""
        now = time.monotonic()
        since = self.waits_since or now
        if now - since >= FIRST_NOTICE_S and now - self.said_at >= (
            FIRST_NOTICE_S if self.said_at == since else NOTICE_EVERY_S
        ):
            self.said_at = now
            self._say(f"waiting for {whom} ({now - since:.0f} s)")
