"""StepTimes: how a task's steps have spent their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainband.runtime.step_recording import StepRecorder

PARTS = ("data", "compute", "send", "network", "ps")
"""The parts of a step, in order:

- `data`: waiting for the next batch;
- `compute`: the gradient, with its copy to the host; for a single worker or workers in lockstep, the whole step with
  its all-reduce;
- `send`: handing the gradient to the transport;
- `network`: the wait for the answer, less the next part;
- `ps`: while a ps held the push: until others had pushed, too, if the update rule waits for them, and for the update.
"""


@dataclass(slots=True)
class StepTimes:
    """Seconds by part since the task began. Written by the training thread, read by any.

    Attributes:
      steps: how many were made.
      data, compute, send, network, ps: see `PARTS`.
      saving: seconds for which checkpoints have blocked the training; not part of a step.
      waited_for: seconds by ps for its answer, once the previous ps had answered; with several ps.
      sent_bytes, received_bytes: of gradients and of the answers to them, as they travelled.
      narrow: whether both travel in a narrower dtype already.
      recorder: records each moment while a recording is requested.
    """

    steps: int = 0
    data: float = 0.0
    compute: float = 0.0
    send: float = 0.0
    network: float = 0.0
    ps: float = 0.0
    saving: float = 0.0
    waited_for: dict[str, float] = field(default_factory=dict)
    sent_bytes: int = 0
    received_bytes: int = 0
    narrow: bool = False
    recorder: StepRecorder | None = None

    def record(self, part: str, begin: float, end: float) -> None:
        """Records the time of a part of a step, by a monotonic clock."""
        setattr(self, part, getattr(self, part) + (end - begin))
        if self.recorder is not None:
            self.recorder.span(part, begin, end)

    def end_step(self, global_step: int, steps: int = 1) -> None:
        """Tells the recorder, if any, that a step, or a call of several, is over."""
        recorder = self.recorder
        if recorder is not None:
            recorder.end_step(global_step, steps)
            if recorder.is_over:
                self.recorder = None

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each part."""
        return {part: getattr(self, part) for part in PARTS}

    def record_wait(self, name: str, begin: float, end: float) -> None:
        """Records a wait for the answer of the named ps."""
        self.waited_for[name] = self.waited_for.get(name, 0.0) + (end - begin)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """How the steps between two moments spent their time.

    Attributes:
      steps: how many.
      seconds: by part, see `PARTS`, and `other`: hooks, checkpoints, the user's own loop.
      waited_for: seconds by ps for its answer, once the previous ps had answered; with several ps.
      saving: seconds of `other` for which checkpoints have blocked the training.
      sent_bytes, received_bytes, narrow: as in `StepTimes`.
    """

    steps: int
    seconds: Mapping[str, float]
    waited_for: Mapping[str, float]
    saving: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    narrow: bool = False

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(self.seconds.values())

    def share(self, part: str) -> float:
        """Returns a part's share of all the time; 0 if no time was spent."""
        return self.seconds.get(part, 0.0) / self.total if self.total > 0 else 0.0


class Since:
    """Measurement of the time spent since a moment.

    Args:
      times: of a task.
      now: seconds, monotonic.
    """

    def __init__(self, times: StepTimes, now: float) -> None:
        self._times = times
        self._began = now
        self._steps, self._seconds, self._waited_for = times.steps, times.seconds(), dict(times.waited_for)
        self._saving, self._sent, self._received = times.saving, times.sent_bytes, times.received_bytes

    def spent(self, now: float) -> TimeSpent:
        """Until `now`."""
        seconds = {part: value - self._seconds[part] for part, value in self._times.seconds().items()}
        seconds["other"] = max(0.0, now - self._began - sum(seconds.values()))
        waited_for = {name: value - self._waited_for.get(name, 0.0) for name, value in self._times.waited_for.items()}
        times = self._times
        return TimeSpent(
            times.steps - self._steps,
            seconds,
            waited_for,
            saving=min(seconds["other"], times.saving - self._saving),
            sent_bytes=times.sent_bytes - self._sent,
            received_bytes=times.received_bytes - self._received,
            narrow=times.narrow,
        )
