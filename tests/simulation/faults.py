"""Faults: what goes wrong in a simulated job, and when. Planned before the job begins, from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.network import Weather

ARBITER = "arbiter"
"""As a task: whichever worker decides now."""
CHIEF = "chief"
"""As a task: whichever worker has the chief's duties now."""


class Crash(NamedTuple):
    """A task dies at a time, and is started again after a while; never, if that is None."""

    at: float
    task: str
    back_after_s: float | None

    @property
    def lasts_s(self) -> float:
        """From then on the task is there again."""
        return self.back_after_s or 0.0


class Pause(NamedTuple):
    """A task is stopped and goes on. `successor`: meanwhile another process is started under its name."""

    at: float
    task: str
    length_s: float
    successor: bool = False

    @property
    def lasts_s(self) -> float:
        """From then on it goes on."""
        return self.length_s + 1.0 * self.successor


class Cut(NamedTuple):
    """Nothing gets from one task to the other for a while, or, if it is both ways, back. Without other: to nobody."""

    at: float
    source: str
    target: str
    length_s: float
    both_ways: bool

    @property
    def lasts_s(self) -> float:
        """From then on everything gets through."""
        return self.length_s


class Terminate(NamedTuple):
    """A task is asked to end, and is started again when it has."""

    at: float
    task: str

    @property
    def lasts_s(self) -> float:
        """A ps serves for a while; then it comes again."""
        return 20.0


class Break(NamedTuple):
    """A stream breaks."""

    at: float

    @property
    def lasts_s(self) -> float:
        """It is over at once."""
        return 0.0


Fault = Crash | Pause | Cut | Terminate | Break


class Trouble(NamedTuple):
    """All that goes wrong in a job: until `over_s`; from then on all is well, but for who does not come back.

    Attributes:
      single: the time of each fault counts from when the one before is over and every shard has its standby.
      at_hand_over: what goes wrong as a shard fails back for the first time; its time counts from then.
    """

    over_s: float
    weather: Weather
    faults: tuple[Fault, ...]
    single: bool = False
    at_failback: tuple[Fault, ...] = ()


def plan(dice: random.Random, workers: Sequence[str], ps: Sequence[str], lease_s: float) -> Trouble:
    """Draws the trouble of one job; the first worker is its chief."""
    over_s = dice.uniform(4.0, 20.0)
    faults = [
        _draw(dice, workers, ps, lease_s, dice.uniform(0.0, over_s)) for _ in range(dice.choice((0, 1, 2, 3, 5, 8)))
    ]
    weather = Weather(
        lost_call=dice.choice((0.0, 0.0, 0.02, 0.1)),
        doubled_call=dice.choice((0.0, 0.05)),
        broken_stream=dice.choice((0.0, 0.01, 0.05, 0.1)),
        slow=dice.choice((0.0, 0.02, 0.1)),
    )
    return Trouble(over_s, weather, tuple(sorted(faults, key=lambda fault: fault.at)))


def _draw(dice: random.Random, workers: Sequence[str], ps: Sequence[str], lease_s: float, at: float) -> Fault:
    kind = dice.choices(("worker", "ps", "pause", "pause ps", "cut", "end", "break"), (4, 2, 4, 1, 4, 1, 2))[0]
    worker = dice.choice((CHIEF, *workers))
    short_or_long = dice.uniform(0.1, 0.9 * lease_s) if dice.random() < 0.5 else dice.uniform(lease_s, 2.5 * lease_s)
    match kind:
        case "worker":
            stays_away = dice.random() < 0.25
            return Crash(at, worker, None if stays_away else dice.uniform(0.1, 2 * lease_s))
        case "ps":
            return Crash(at, dice.choice(ps), dice.uniform(0.1, 2 * lease_s))
        case "pause":
            return Pause(at, worker, short_or_long, successor=dice.random() < 0.3)
        case "pause ps":
            return Pause(at, dice.choice(ps), short_or_long)
        case "end":
            return Terminate(at, dice.choice((CHIEF, *workers, *ps)))
        case "cut":
            ends = [worker, dice.choice(ps)]
            dice.shuffle(ends)
            return Cut(at, ends[0], ends[1], short_or_long, both_ways=dice.random() < 0.5)
    return Break(at)


def plan_of_standbys(
    dice: random.Random, workers: Sequence[str], ps: Sequence[str], lease_s: float, *, single: bool
) -> Trouble:
    """Draws the trouble of one job whose shards have standbys."""
    if not single:
        over_s = dice.uniform(4.0, 25.0)
        number = dice.choice((1, 2, 3, 5, 8))
        faults = [_draw_of_standbys(dice, workers, ps, lease_s, dice.uniform(0.5, over_s)) for _ in range(number)]
        weather = Weather(
            lost_call=dice.choice((0.0, 0.0, 0.02, 0.1)),
            doubled_call=dice.choice((0.0, 0.05)),
            broken_stream=dice.choice((0.0, 0.0, 0.005, 0.02)),
            slow=dice.choice((0.0, 0.02, 0.1)),
        )
        by_time = tuple(sorted(faults, key=lambda fault: fault.at))
        number = dice.choice((0, 1, 2, 3))
        return Trouble(over_s, weather, by_time, at_failback=_at_failback(dice, workers, ps, lease_s, number))
    number = dice.choice((1, 2, 3, 4))
    faults = [_draw_of_standbys(dice, workers, ps, lease_s, dice.uniform(0.0, 3.0)) for _ in range(number)]
    if dice.random() < 0.3:
        faults = [*faults[: dice.randrange(2)], Crash(dice.uniform(0.0, 3.0), dice.choice(ps), None)]
    weather = Weather(doubled_call=dice.choice((0.0, 0.05)), slow=dice.choice((0.0, 0.02)))
    at_failback = _at_failback(dice, workers, ps, lease_s, dice.choice((0, 1)))
    return Trouble(60.0, weather, tuple(faults), single=True, at_failback=at_failback)


def _at_failback(
    dice: random.Random, workers: Sequence[str], ps: Sequence[str], lease_s: float, number: int
) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    for _ in range(number):
        if dice.random() < 0.5:
            one, other = dice.sample(ps, 2)
            faults.append(Cut(0.0, one, other, dice.uniform(0.1, 3.0 * lease_s), both_ways=dice.random() < 0.6))
        else:
            at = dice.choice((0.0, dice.uniform(0.0, 0.1), dice.uniform(0.0, 1.0)))
            faults.append(_draw_of_standbys(dice, workers, ps, lease_s, at))
    return tuple(faults)


def _draw_of_standbys(
    dice: random.Random, workers: Sequence[str], ps: Sequence[str], lease_s: float, at: float
) -> Fault:
    kind = dice.choices(
        ("ps", "pause ps", "cut ps", "cut arbiter", "worker", "pause", "end", "break"), (5, 4, 5, 3, 3, 2, 1, 2)
    )[0]
    one, other = dice.sample(ps, 2)
    worker = dice.choice((ARBITER, CHIEF, dice.choice(workers)))
    length_s = dice.uniform(0.1, 0.9 * lease_s) if dice.random() < 0.4 else dice.uniform(lease_s, 3.0 * lease_s)
    both_ways = dice.random() < 0.6
    match kind:
        case "ps":
            return Crash(at, one, dice.uniform(0.1, 3 * lease_s))
        case "pause ps":
            return Pause(at, one, length_s)
        case "cut ps":
            return Cut(at, one, dice.choice((other, other, dice.choice(workers), "")), length_s, both_ways)
        case "cut arbiter":
            ends = [ARBITER, dice.choice((one, one, ""))]
            if ends[1] and dice.random() < 0.5:
                ends.reverse()
            return Cut(at, ends[0], ends[1], length_s, both_ways)
        case "worker":
            return Crash(at, worker, dice.uniform(0.1, 2 * lease_s))
        case "pause":
            return Pause(at, worker, length_s, successor=dice.random() < 0.3)
        case "end":
            return Terminate(at, dice.choice((CHIEF, *workers, *ps)))
    return Break(at)
