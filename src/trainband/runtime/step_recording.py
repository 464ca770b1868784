"""StepRecording: some steps of one task, moment by moment, and of its pushes what the ps did with them.

Moments are seconds of the clock of whoever noted them; `monitor.trace` brings them onto one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from trainband.runtime.base import Clock

MOST_SPANS = 20_000
MOST_PUSHES = 20_000
MOST_READINGS = 1_000
MOST_STEPS = 1_000
LONGEST_S = 60.0
"""After which a recording ends with the steps that it has."""

Moment = Annotated[float, Meta(ge=0, le=1e12)]
Name = Annotated[str, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Span(Struct, frozen=True, array_like=True):
    """Something that the thread which trains has done."""

    name: Name
    """One of `step_times.PARTS`, `wait ps:1`, or `step`, which holds the others."""
    begin: Moment
    end: Moment
    global_step: Count = 0
    """Of a `step`: that of the job when it was over."""


class PushMoments(Struct, frozen=True, array_like=True):
    """What a ps did with a push, by the clock of the ps."""

    came: Moment
    """The whole gradient was there."""
    taken: Moment
    """It was found good, and the update rule has it."""
    began: Moment
    """The update that it is part of; 0 where it became part of none."""
    ended: Moment
    """That update."""
    answered: Moment
    """The rule lets the worker go on."""
    sent: Moment
    """The standby, where there is one, has it too, and the params go out."""


class PushTimes(Struct, frozen=True, array_like=True):
    """A push to one ps, by the worker's clock, and the answer to it."""

    ps: Name
    nbytes: Count
    answer_nbytes: Count
    begin: Moment
    """The gradient goes out."""
    sent: Moment
    """The transport has taken it."""
    received: Moment
    """The params are here, and the worker has looked for them."""
    moments: PushMoments | None = None


class ClockReading(Struct, frozen=True, array_like=True):
    """A question for the clock of a ps: what it showed lies between the two moments of the worker's own."""

    ps: Name
    asked: Moment
    clock: Moment
    answered: Moment


class StepRecording(Struct, frozen=True):
    """Some steps of one task."""

    task: Name
    host: Name
    pid: Count
    epoch_s: float
    """Seconds since 1970 at moment 0 of the task's clock."""
    spans: Annotated[tuple[Span, ...], Meta(max_length=MOST_SPANS)] = ()
    pushes: Annotated[tuple[PushTimes, ...], Meta(max_length=MOST_PUSHES)] = ()
    readings: Annotated[tuple[ClockReading, ...], Meta(max_length=MOST_READINGS)] = ()


class StepRecorder:
    """Notes what the next steps do. Written by the thread that trains.

    Args:
      steps: how many to record; it is over after them, or after a minute.
      clock: that of all moments.
    """

    def __init__(self, steps: int, clock: Clock = time.monotonic) -> None:
        self.left = steps
        self.clock = clock
        self._begun: float | None = None
        self._since = clock()
        self._deadline = self._since + LONGEST_S
        self._spans: list[Span] = []
        self._pushes: list[PushTimes] = []

    @property
    def is_over(self) -> bool:
        """Whether it notes nothing more. To be asked by any thread."""
        return self.left <= 0 or self.clock() > self._deadline

    def begin(self) -> None:
        """A step begins now; the one under way, of which a part is missing, is not recorded."""
        self._begun = self.clock()

    def span(self, name: str, begin: float, end: float) -> None:
        """Notes a part of the step."""
        if self._begun is not None and len(self._spans) < MOST_SPANS:
            self._spans.append(Span(name, max(begin, 0.0), max(end, 0.0)))

    def push(self, push: PushTimes) -> None:
        """Notes a push that was answered."""
        if self._begun is not None and len(self._pushes) < MOST_PUSHES:
            self._pushes.append(push)

    def end_step(self, global_step: int, steps: int = 1) -> None:
        """A step, or a call of several, is over, and the next begins."""
        now = self.clock()
        if self._begun is not None:
            if len(self._spans) < MOST_SPANS:
                self._spans.append(Span("step", self._begun, now, max(global_step, 0)))
            self.left -= steps
        self._begun = now

    def recording(
        self, task: str, host: str, pid: int, readings: Callable[[], tuple[ClockReading, ...]] = tuple
    ) -> StepRecording:
        """What was noted.

        Args:
          task: whose steps these are.
          host: where it runs.
          pid: of its process.
          readings: of the clocks of the ps.
        """
        epoch_s = time.time() - self.clock()
        return StepRecording(
            task[:64], host[:64], pid, epoch_s, tuple(self._spans), tuple(self._pushes), readings()[-MOST_READINGS:]
        )
