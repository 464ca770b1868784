"""Activity: what this process is doing and waiting for, as its heartbeats report it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import jax

from trainband.runtime.base import Clock
from trainband.runtime.waiting import FIRST_NOTICE_S, NOTICE_EVERY_S, Say

EXCHANGE_ERRORS = frozenset(
    ("gloo", "nccl", "connection", "unavailable", "deadline", "collective", "socket", "peer", "broken pipe")
)
"""Words in the errors of XLA's exchanges when a peer has gone."""

OF_ALL = -1


class Wait(NamedTuple):
    """A wait for the values of other processes.

    Attributes:
      key: where others must leave a value.
      about: what this process does, as in "worker:0 {about}".
      of: the process that must leave one, or `OF_ALL`.
    """

    key: str
    about: str
    of: int


def _is_of_an_exchange(exc: Exception) -> bool:
    """Whether XLA reports a failed exchange: starting with a code such as UNKNOWN, and sometimes as a ValueError."""
    text = str(exc)
    is_xlas = isinstance(exc, jax.errors.JaxRuntimeError | ValueError) and text.partition(":")[0].isupper()
    return is_xlas and any(word in text.lower() for word in EXCHANGE_ERRORS)


class Activity:
    """The current activity of this process.

    Args:
      say: prints lines for the user.
      clock: returns seconds.
    """

    def __init__(self, say: Say, clock: Clock) -> None:
        self.say = say
        self._clock = clock
        self.step = (0, 0)
        """The training that this process is in, and its call."""
        self.doing = ""
        """Something that the others should wait for, as text."""
        self.wait: Wait | None = None
        """The value that it waits for, if any."""
        self.waits_since: float | None = None
        """When it began to wait for others, in an exchange or for a value."""
        self.reported_at = 0.0
        """When it last reported that."""
        self.settled = False
        """Whether a step has been computed: compilation is over, and later steps are as fast."""
        self._exchanges = 0
        """How many exchanges with all others this process is in."""

    @contextlib.contextmanager
    def waiting(self, wait: Wait | None = None) -> Iterator[None]:
        """A context in which this process waits for a value from other processes, or only for the store."""
        waited, self.waits_since = self.waits_since, self._clock()
        self.reported_at = self.waits_since
        self.wait = wait
        try:
            yield
        finally:
            self.waits_since = None if waited is None else self._clock()
            self.wait = None

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A context in which this process does something that the others should wait for."""
        before, self.doing = self.doing, what
        try:
            yield
        finally:
            self.doing = before

    def enter_exchange(self, training: int = 0, call: int = 0) -> None:
        """Records that an exchange begins, in this call of this training (from 1)."""
        self.step = (training, call) if training else self.step
        self._exchanges += 1
        self.waits_since = self.reported_at = self._clock()

    def leave_exchange(self) -> None:
        """Records that an exchange is over."""
        self._exchanges -= 1
        self.waits_since = self._clock() if self._exchanges else None

    def report_wait(self, whom: str) -> None:
        """Reports now and then which tasks this process waits for; nothing if unknown."""
        now = self._clock()
        since = self.waits_since or now
        if (
            whom
            and now - since >= FIRST_NOTICE_S
            and now - self.reported_at >= (FIRST_NOTICE_S if self.reported_at == since else NOTICE_EVERY_S)
        ):
            self.reported_at = now
            self.say(f"waiting for {whom} ({now - since:.0f} s)")


class Watched:
    """A context for an exchange that has begun. A class, because a step enters it twice and a generator takes a
    microsecond longer.

    Args:
      activity: of this process.
      explained: returns the reason why an exchange failed.
    """

    __slots__ = ("_activity", "_explained")

    def __init__(self, activity: Activity, explained: Callable[[Exception], Exception]) -> None:
        self._activity = activity
        self._explained = explained

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(exc, Exception) and _is_of_an_exchange(exc):
                raise self._explained(exc) from exc
        finally:
            self._activity.leave_exchange()
