"""The faults of `bench.chaos`: their kinds and order, and how each strikes and heals."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.traced_job import CHIEF, PS_TASKS, WORKER_TASKS, TracedJob, machine_of

SHORT_S = 1.0
"""Of a pause that is shorter than the lease."""
LONG_S = 5.0
"""Of one that is longer."""
MOST_OF_PRIMARY = 0.75
"""How often a fault of a ps goes to the one that holds most shards, where the other is only the standby."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
      victim: ``worker``, ``chief``, ``ps`` or ``any worker``.
      act: ``kill`` (-9), ``terminate`` (SIGTERM), ``stop`` (SIGSTOP, then SIGCONT) or ``unplug`` (a cable).
      least_s: of a stop or a cut, seconds until it heals.
      most_s: likewise.
    """

    name: str
    victim: str
    act: str
    colour: str
    least_s: float = 0.0
    most_s: float = 0.0


KINDS = (
    Kind("worker killed", "worker", "kill", "#1f77b4"),
    Kind("chief killed", "chief", "kill", "#17becf"),
    Kind("ps killed", "ps", "kill", "#d62728"),
    Kind("worker preempted", "any worker", "terminate", "#2ca02c"),
    Kind("worker pauses", "any worker", "stop", "#9edae5", SHORT_S, SHORT_S),
    Kind("worker sleeps", "any worker", "stop", "#7f7f7f", LONG_S, LONG_S),
    Kind("ps pauses", "ps", "stop", "#ff9896", SHORT_S, SHORT_S),
    Kind("ps sleeps", "ps", "stop", "#ff7f0e", LONG_S, LONG_S),
    Kind("worker unplugged", "any worker", "unplug", "#9467bd", 1.0, 5.0),
    Kind("ps unplugged", "ps", "unplug", "#e377c2", 1.0, 5.0),
)


@dataclass(slots=True)
class Fault:
    """One fault as it happened; all times are of the monotonic clock.

    Attributes:
      kind: its name; that of a ps's says ``standby`` where it held no shard.
      lasts_s: of a stop or a cut.
      healed_s: when the process ran again or the cable was back; None before that.
      whole_s: when the job was whole again; None where it was not before the end.
    """

    kind: str
    colour: str
    act: str
    target: str
    began_s: float
    lasts_s: float
    life: int
    healed_s: float | None = None
    whole_s: float | None = None

    @property
    def of_ps(self) -> bool:
        """Whether it has struck a ps."""
        return self.target in PS_TASKS

    def __str__(self) -> str:
        """Name it."""
        return f"{self.kind}: {self.target}" + (f" for {self.lasts_s:.1f} s" if self.lasts_s else "")


class Faults:
    """Draws faults and does them to a job.

    Every kind comes up once before any comes up again, in an order of the seed's.

    Args:
      job: to which they are done.
      seed: of the order, the victims and the times.
      mean_s: seconds between two, in the mean.
      kinds: of faults.
    """

    def __init__(self, job: TracedJob, seed: int, mean_s: float, kinds: Sequence[Kind]) -> None:
        """Draw nothing yet."""
        self._job = job
        self._random = random.Random(seed)
        self._mean_s = mean_s
        self._deck = self._shuffled(kinds)
        self.struck: list[Fault] = []
        """All there were, in order."""

    def _shuffled(self, kinds: Sequence[Kind]) -> Iterator[Kind]:
        while True:
            yield from self._random.sample(kinds, len(kinds))

    def pause_s(self) -> float:
        """Draw the seconds until the next fault: around the mean, by at most half of it."""
        return self._mean_s * self._random.uniform(0.5, 1.5)

    def strike(self) -> Fault | None:
        """Do the next fault; None where its victim is not there to be hit."""
        kind = next(self._deck)
        target = self._choose(kind.victim)
        lasts_s = self._random.uniform(kind.least_s, kind.most_s)
        busy = {fault.target for fault in self.struck if fault.healed_s is None}
        if not self._job.tasks.running(target) or target in busy:
            return None
        name = kind.name
        if target in PS_TASKS and "primary" not in self._job.roles(PS_TASKS.index(target)):
            name = name.replace("ps", "standby", 1)
        life = self._job.tasks.lives[target][-1].number
        fault = Fault(name, kind.colour, kind.act, target, time.monotonic(), lasts_s, life)
        self.struck.append(fault)
        match kind.act:
            case "kill":
                self._job.tasks.end(target, signal.SIGKILL)
            case "terminate":
                self._job.tasks.end(target, signal.SIGTERM)
            case "stop":
                self._job.tasks.send(target, signal.SIGSTOP)
            case "unplug" if self._job.machines is not None:
                self._job.machines.unplug(machine_of(target))
        return fault

    def poll(self) -> bool:
        """Heal what it is time for, and note what is whole again; say whether the job is so after all of them."""
        now = time.monotonic()
        for fault in self.struck:
            if fault.healed_s is None:
                self._heal(fault, now)
            elif fault.whole_s is None and not self._job.missing(fault.healed_s):
                fault.whole_s = now
        return all(fault.whole_s is not None for fault in self.struck)

    def _heal(self, fault: Fault, now: float) -> None:
        if fault.act in ("kill", "terminate"):
            lives = self._job.tasks.lives[fault.target]
            if lives[-1].number > fault.life:
                fault.healed_s = lives[fault.life + 1].started_s
            return
        if now - fault.began_s < fault.lasts_s:
            return
        if fault.act == "stop":
            self._job.tasks.send(fault.target, signal.SIGCONT)
        elif self._job.machines is not None:
            self._job.machines.plug(machine_of(fault.target))
        fault.healed_s = time.monotonic()

    def _choose(self, victim: str) -> str:
        match victim:
            case "chief":
                return CHIEF
            case "worker":
                return self._random.choice([task for task in WORKER_TASKS if task != CHIEF])
            case "any worker":
                return self._random.choice(WORKER_TASKS)
        held = [self._job.roles(ps).count("primary") for ps in range(len(PS_TASKS))]
        drawn, other = self._random.random(), self._random.choice(PS_TASKS)
        return PS_TASKS[held.index(max(held))] if drawn < MOST_OF_PRIMARY and held[0] != held[1] else other
