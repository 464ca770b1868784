"""StepTimes: what a task's steps have spent their time on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainband.runtime.step_recording import StepRecorder

PARTS = ("data", "compute", "send", "network", "ps")
"""The parts of a step, in the order in which they come:

- `data`: waiting for the next batch;
- `compute`: the gradient, with its copy to the host; alone, and where workers compute in step, the whole step with its
  all-reduce;
- `send`: handing the gradient to the transport;
- `network`: between the two, less the next part;
- `ps`: while a ps held the push: until others had pushed as well, where the update rule waits for them, and for the
  update.
"""


@dataclass(slots=True)
class StepTimes:
    """Seconds by part, since the task began. Written by the thread that trains, and read by any.

    Attributes:
      steps: that were made.
      data, compute, send, network, ps: see `PARTS`.
      waited_for: seconds by ps for its answer, once those of the ps before it were there; of several ps.
      recorder: notes each moment while somebody wants to see it.
    """

    steps: int = 0
    data: float = 0.0
    compute: float = 0.0
    send: float = 0.0
    network: float = 0.0
    ps: float = 0.0
    waited_for: dict[str, float] = field(default_factory=dict)
    recorder: StepRecorder | None = None

    def note(self, part: str, begin: float, end: float) -> None:
        """Notes what a part of a step has taken, by a monotonic clock."""
        setattr(self, part, getattr(self, part) + (end - begin))
        if self.recorder is not None:
            self.recorder.span(part, begin, end)

    def end_step(self, global_step: int, steps: int = 1) -> None:
        """Tells the recorder, where there is one, that a step is over, or a call of several."""
        recorder = self.recorder
        if recorder is not None:
            recorder.end_step(global_step, steps)
            if recorder.is_over:
                self.recorder = None

    def seconds(self) -> dict[str, float]:
        """Of each part."""
        return {part: getattr(self, part) for part in PARTS}

    def note_wait(self, name: str, begin: float, end: float) -> None:
        """Notes a wait for the answer of the ps of this name."""
        self.waited_for[name] = self.waited_for.get(name, 0.0) + (end - begin)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """What the steps between two moments spent their time on.

    Attributes:
      steps: how many.
      seconds: by part, see `PARTS`, and `other`: hooks, checkpoints, the user's own loop.
      waited_for: seconds by ps for its answer, once those of the ps before it were there; of several ps.
    """

    steps: int
    seconds: Mapping[str, float]
    waited_for: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds."""
        return sum(self.seconds.values())

    def share(self, part: str) -> float:
        """Of all the time; 0 where no time was spent."""
        return self.seconds.get(part, 0.0) / self.total if self.total > 0 else 0.0


class Since:
    """Remembers a moment, and tells what was spent since.

    Args:
      times: of a task.
      now: seconds, monotonic.
    """

    def __init__(self, times: StepTimes, now: float) -> None:
        self._times = times
        self._began = now
        self._steps, self._seconds, self._waited_for = times.steps, times.seconds(), dict(times.waited_for)

    def spent(self, now: float) -> TimeSpent:
        """Until `now`."""
        seconds = {part: value - self._seconds[part] for part, value in self._times.seconds().items()}
        seconds["other"] = max(0.0, now - self._began - sum(seconds.values()))
        waited_for = {name: value - self._waited_for.get(name, 0.0) for name, value in self._times.waited_for.items()}
        return TimeSpent(self._times.steps - self._steps, seconds, waited_for)
