"""StepRecording: a timeline of some steps of one task and of how the ps handled its pushes.

Moments are seconds of the recording task's clock; `monitor.trace` converts them to one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from trainband.runtime.base import Clock
from trainband.runtime.formatting import PLAIN

MOST_SPANS = 20_000
MOST_PUSHES = 20_000
MOST_READINGS = 1_000
MOST_STEPS = 1_000
LONGEST_S = 60.0
"""After this, a recording ends with the steps that it has."""

Moment = Annotated[float, Meta(ge=0, le=1e12)]
Name = Annotated[str, Meta(pattern=rf"\A{PLAIN}{{0,64}}\Z")]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class Span(Struct, frozen=True, array_like=True):
    """An activity of the training thread."""

    name: Name
    """One of `step_times.PARTS`, `wait ps:1`, or `step`, which holds the others."""
    begin: Moment
    end: Moment
    global_step: Count = 0
    """For a `step`: the job's global step when it was over."""


class PushMoments(Struct, frozen=True, array_like=True):
    """The stages of a push at a ps, by the clock of the ps."""

    came: Moment
    """The whole gradient has arrived."""
    taken: Moment
    """It is valid, and the update rule has it."""
    began: Moment
    """Its update begins; 0 if it became part of none."""
    ended: Moment
    """That update ends."""
    answered: Moment
    """The rule releases the worker."""
    sent: Moment
    """The standby, if any, has the update, and the params are sent."""


class PushTimes(Struct, frozen=True, array_like=True):
    """A push to one ps, by the worker's clock, and the answer to it."""

    ps: Name
    nbytes: Count
    answer_nbytes: Count
    begin: Moment
    """Sending the gradient begins."""
    sent: Moment
    """The transport has accepted it."""
    received: Moment
    """The params have arrived, and the worker has checked for them."""
    moments: PushMoments | None = None


class ClockReading(Struct, frozen=True, array_like=True):
    """A reading of a ps's clock, taken between two moments of the worker's clock."""

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
    """Records the next steps. Written by the training thread.

    Args:
      steps: how many to record; it is over after them, or after a minute.
      clock: the clock of all moments.
    """

    def __init__(self, steps: int, clock: Clock = time.monotonic) -> None:
        self.left = steps
        self.clock = clock
        self._started_at: float | None = None
        self._since = clock()
        self._deadline = self._since + LONGEST_S
        self._spans: list[Span] = []
        self._pushes: list[PushTimes] = []

    @property
    def is_over(self) -> bool:
        """Whether the recording has ended. Any thread may call it."""
        return self.left <= 0 or self.clock() > self._deadline

    def start_step(self) -> None:
        """Begins a step now; the current one, which is incomplete, is not recorded."""
        self._started_at = self.clock()

    def span(self, name: str, begin: float, end: float) -> None:
        """Records a part of the step."""
        if self._started_at is not None and len(self._spans) < MOST_SPANS:
            self._spans.append(Span(name, max(begin, 0.0), max(end, 0.0)))

    def push(self, push: PushTimes) -> None:
        """Records a push that was answered."""
        if self._started_at is not None and len(self._pushes) < MOST_PUSHES:
            self._pushes.append(push)

    def end_step(self, global_step: int, steps: int = 1) -> None:
        """Ends a step, or a call of several, and begins the next."""
        now = self.clock()
        if self._started_at is not None:
            if len(self._spans) < MOST_SPANS:
                self._spans.append(Span("step", self._started_at, now, max(global_step, 0)))
            self.left -= steps
        self._started_at = now

    def recording(
        self, task: str, host: str, pid: int, readings: Callable[[], tuple[ClockReading, ...]] = tuple
    ) -> StepRecording:
        """Returns the recording.

        Args:
          task: the task of these steps.
          host: where it runs.
          pid: of its process.
          readings: of the clocks of the ps.
        """
        epoch_s = time.time() - self.clock()
        return StepRecording(
            task[:64], host[:64], pid, epoch_s, tuple(self._spans), tuple(self._pushes), readings()[-MOST_READINGS:]
        )
