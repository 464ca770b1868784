"""The scenario of a simulated job of workers that compute in lockstep, drawn from its seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.simulation.faults import Crash, Cut, Pause
from tests.simulation.network import CALM, Weather
from trainband.spmd.strangers import MOST_STRANGERS

TIMEOUT_S, START_S = 8.0, 20.0
"""The group's: for a silent process, and for all to come."""

CHIEF = "worker:0"

WITHIN_S = (0.0, 30.0)
"""Of the job's beginning: when a process or the network fails."""

SHORT, LONG = (0.2, 0.35), (2.2, 3.5)
"""Shares of `TIMEOUT_S`: delays that must go unreported, and delays that must be reported."""


class Raises(NamedTuple):
    """A worker's script fails at a step of its first training."""

    step: int
    task: str


class Hangs(NamedTuple):
    """A worker's script does nothing from a step on, and its process lives."""

    step: int
    task: str


class Strays(NamedTuple):
    """From a step on, a worker does something else that needs the others."""

    step: int
    task: str


class Evaluates(NamedTuple):
    """A worker evaluates at a step, for `length_s` seconds."""

    step: int
    task: str
    length_s: float


class Restarts(NamedTuple):
    """While a worker waits for the others to come up, it dies, and comes back after a while."""

    at: float
    task: str
    length_s: float


class Doubles(NamedTuple):
    """A second process is started as a task."""

    at: float
    task: str


class Crowds(NamedTuple):
    """Strangers connect to a task, and are silent or talk nonsense."""

    at: float
    task: str
    callers: int


class StaysAway(NamedTuple):
    """A worker is not started."""

    at: float
    task: str


Deed = Raises | Hangs | Strays | Evaluates
Start = Restarts | Doubles | Crowds | StaysAway
Fault = Crash | Pause | Cut | Deed | Start


class Scenario(NamedTuple):
    """A job.

    Attributes:
      seed: of all that is drawn while it runs.
      workers: how many there are.
      per_call: steps in a call.
      limits: of each training, the global step at which it ends; `None`: with the data.
      data: of each training, how many batches each worker has.
      stops: of each training, the call with which the chief ends it; `None`: it does not.
      starts: of each worker, when its process is started.
      step_s: of each worker, how long it takes to get a batch.
      not_finite: share of the gradients.
      another_engine: whether each training has its own Trainer.
      weather: of the network.
      faults: in the order of their times.
    """

    seed: int
    workers: int
    per_call: int
    limits: tuple[int | None, ...]
    data: tuple[tuple[int, ...], ...]
    stops: tuple[int | None, ...]
    starts: tuple[float, ...]
    step_s: tuple[float, ...]
    not_finite: float
    another_engine: bool
    weather: Weather
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """The job of a seed."""
        dice = random.Random(seed)
        workers, trainings = dice.choice((2, 3, 3, 4)), dice.choice((1, 2))
        limits: list[int | None] = []
        for _ in range(trainings):
            limits.append(None if dice.random() < 0.4 else (limits[-1] or 0 if limits else 0) + dice.randint(1, 40))
        starts = tuple(dice.uniform(0.0, dice.choice((2.0, 2.0, 10.0))) for _ in range(workers))
        return cls(
            seed=seed,
            workers=workers,
            per_call=dice.choice((1, 1, 3)),
            limits=tuple(limits),
            data=tuple(
                tuple(dice.choice((dice.randint(20, 60), 60, 60)) for _ in range(workers))
                if dice.random() < 0.8
                else tuple(dice.randint(0, 5) for _ in range(workers))
                for _ in range(trainings)
            ),
            stops=tuple(dice.randint(0, 40) if dice.random() < 0.3 else None for _ in range(trainings)),
            starts=starts,
            step_s=tuple(dice.choice((0.05, 0.3, 0.6)) for _ in range(workers)),
            not_finite=dice.choice((0.0, 0.1)),
            another_engine=dice.random() < 0.5,
            weather=dice.choice((CALM, CALM, Weather(slow=0.02))),
            faults=tuple(_draw(dice, {f"worker:{index}": at for index, at in enumerate(starts)})),
        )

    def place(self, fault: Fault) -> str:
        """The task of a fault."""
        return fault.source if isinstance(fault, Cut) else fault.task


def _draw(dice: random.Random, starts: Mapping[str, float]) -> list[Fault]:
    """Draws at most one fault that must be reported, and perhaps some that must not."""
    faults = [_harmless(dice, list(starts)) for _ in range(dice.choice((0, 0, 1, 2)))]
    if dice.random() < 0.3:
        faults += _at_the_start(dice, starts)
    if dice.random() < 0.75:
        faults.append(_harmful(dice, list(starts)))
    return faults


def _harmless(dice: random.Random, tasks: Sequence[str]) -> Fault:
    at, length_s, task = dice.uniform(*WITHIN_S), TIMEOUT_S * dice.uniform(*SHORT), dice.choice(tasks)
    other = dice.choice([one for one in tasks if one != task])
    kind = dice.choice((Pause, Cut, Evaluates))
    if kind is Pause:
        return Pause(at, task, length_s)
    if kind is Cut:
        return Cut(at, task, other, length_s / 2, both_ways=True)  # TCP may take as long again
    return Evaluates(dice.randint(0, 20), task, dice.uniform(1.0, 1.5 * START_S))


def _at_the_start(dice: random.Random, starts: Mapping[str, float]) -> list[Fault]:
    """Draws what the job must survive before all have come up."""
    last = max(starts, key=lambda task: starts[task])
    task, at = dice.choice([one for one in starts if one != last]), starts[last] - 1.5
    if starts[task] + 0.5 < at and dice.random() < 0.6:
        return [Restarts(dice.uniform(starts[task] + 0.5, at), task, dice.uniform(0.5, 5.0))]
    if dice.random() < 0.5:
        return [Crowds(dice.uniform(0.0, 8.0), CHIEF, dice.choice((5, 2 * MOST_STRANGERS)))]
    return [Doubles(max(starts[task] + 0.5, starts[last] + dice.uniform(-3.0, 3.0)), task)]


def _harmful(dice: random.Random, tasks: Sequence[str]) -> Fault:
    at, length_s, task = dice.uniform(*WITHIN_S), TIMEOUT_S * dice.uniform(*LONG), dice.choice(tasks)
    drawn: Any = dice.choice((Crash, Crash, Pause, Pause, Cut, Raises, Hangs, Strays, StaysAway))
    match drawn:
        case kind if kind is Crash:
            return Crash(at, task, None)
        case kind if kind is Pause:
            return Pause(at, task, length_s)
        case kind if kind is StaysAway:
            return StaysAway(0.0, task)
        case kind if kind is Cut:
            # From all others, or from one: then neither the store nor an exchange may get through.
            target = dice.choice(("", *[one for one in tasks if one != task]))
            return Cut(at, task, target, length_s, both_ways=True)
        case _:
            deed: Deed = drawn(dice.randint(0, 20), task)
            return deed
