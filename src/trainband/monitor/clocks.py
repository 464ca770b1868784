"""Aligns the clocks of a job's tasks, from what their recordings show of each other's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainband.runtime.step_recording import StepRecording


@dataclass(frozen=True, slots=True)
class Shift:
    """Converts times of one clock to the reference clock.

    Attributes:
      seconds: to add.
      uncertainty_s: largest error, either way.
    """

    seconds: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds on how far the clock of a ps is ahead of a worker's, in seconds."""

    least: float
    most: float

    @property
    def middle(self) -> float:
        return (self.least + self.most) / 2

    @property
    def width(self) -> float:
        return abs(self.most - self.least)


def shifts(recordings: Sequence[StepRecording]) -> Mapping[str, Shift]:
    """Returns the shift of each task to one clock, by task.

    A message leaves before it arrives. So each clock request to a ps, and each push with its answer, bounds from both
    sides how far that clock is ahead of the worker's; the true offset lies in all of these intervals (K. Marzullo and
    S. Owicki, "Maintaining the time in a distributed system", 1983), and their middle is used. Drawn with it, no
    message arrives before it was sent.

    The reference is the clock of the first ps that all, or most, recordings know. A task that shares no ps with it, as
    in a job without ps, is placed by the wall clocks of the machines, which may be wrong by milliseconds or more.
    """
    known = {one.task: _bounds_of(one) for one in recordings}
    shifts: dict[str, Shift] = {}
    seen = [ps for bounds in known.values() for ps in bounds]
    if seen:
        reference = min(set(seen), key=lambda ps: (-seen.count(ps), ps))
        shifts[reference] = Shift(0.0, 0.0)
        # Each round places the tasks that know a placed one; with two kinds of tasks, few rounds suffice.
        while True:
            found = dict(_next(known, shifts))
            if not found:
                break
            shifts.update(found)
    by_wall = [one for one in recordings if one.task not in shifts]
    if by_wall:
        anchor = next((one for one in recordings if one.task in shifts), by_wall[0])
        begun = shifts.get(anchor.task, Shift(0.0, 0.0)).seconds - anchor.epoch_s
        for one in by_wall:
            shifts[one.task] = Shift(one.epoch_s + begun, float("inf") if one is not anchor else 0.0)
    return shifts


def _next(known: Mapping[str, Mapping[str, _Bounds]], placed: Mapping[str, Shift]) -> Iterator[tuple[str, Shift]]:
    """Yields the tasks that know a placed one, each placed by its tightest bounds."""
    for worker, bounds in known.items():
        candidates = [
            Shift(placed[ps].seconds + b.middle, placed[ps].uncertainty_s + b.width / 2)
            for ps, b in bounds.items()
            if ps in placed
        ]
        if worker not in placed and candidates:
            yield worker, min(candidates, key=lambda shift: shift.uncertainty_s)
    for ps in {ps for bounds in known.values() for ps in bounds} - placed.keys():
        candidates = [
            Shift(placed[worker].seconds - bounds[ps].middle, placed[worker].uncertainty_s + bounds[ps].width / 2)
            for worker, bounds in known.items()
            if ps in bounds and worker in placed
        ]
        if candidates:
            yield ps, min(candidates, key=lambda shift: shift.uncertainty_s)


def _bounds_of(recording: StepRecording) -> Mapping[str, _Bounds]:
    found: dict[str, _Bounds] = {}

    def narrow(ps: str, least: float, most: float) -> None:
        known = found.get(ps, _Bounds(float("-inf"), float("inf")))
        found[ps] = _Bounds(max(known.least, least), min(known.most, most))

    for reading in recording.readings:
        narrow(reading.ps, reading.clock - reading.answered, reading.clock - reading.asked)
    for push in recording.pushes:
        if push.moments is not None:
            narrow(push.ps, push.moments.sent - push.received, push.moments.came - push.begin)
    return found
