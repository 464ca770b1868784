"""Balance: each worker's share of the examples of an update, by its measured speed.

Source: Chen et al. 2020, Semi-Dynamic Load Balancing: Efficient Distributed Learning in Non-Dedicated Environments
(LB-BSP, SoCC '20). As in the paper, workers keep their shares until a new division would gain something; unlike in the
paper, a worker's speed is the mean of its last steps, not predicted by a network, and shares are whole parts of a
batch, so that few batch sizes have to be compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace

from trainband.ps.rules.events import Push, RuleError
from trainband.wire.messages.workload import LONGEST_S

MEASURED_S = 2.0
"""Seconds of computing by the slowest worker between two reviews of the shares."""
MEASURED_STEPS = 3
"""Minimum steps of each worker between two reviews of the shares."""
SHORTEST_S = 1e-12
"""Minimum seconds for a part."""
GAIN = 0.02
"""Minimum fraction of step time that new shares must save: a new share may need a program to be compiled."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one worker since the last review of the shares."""

    steps: int = 0
    seconds: float = 0.0
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    """The division of an update's examples among workers. Immutable.

    Every update has as many parts as the planned workers would have at equal speeds, however many there are now.

    Attributes:
      planned: number of workers in the cluster.
      usual: parts in a worker's step without balance; 0 before the first push.
      part_examples: examples in a part.
      shares: parts of each worker's next step; a worker not listed has the usual ones.
      costs: seconds per part of each worker, at the last review.
      measured: measurements since then.
    """

    planned: int
    usual: int = 0
    part_examples: int = 0
    shares: Mapping[int, int] = field(default_factory=dict)
    costs: Mapping[int, float] = field(default_factory=dict)
    measured: Mapping[int, Measured] = field(default_factory=dict)

    def share(self, worker: int) -> int:
        """Parts of this worker's next step; 0 for the usual ones.

        A worker that joins when all parts of a step are assigned adds one, and has a share from the next step on.
        """
        return self.shares.get(worker, 1 if self.shares else 0)

    def check(self, push: Push) -> None:
        """Refuses a push that cannot be counted in parts.

        Raises:
          RuleError: it has no workload, or steps unlike those of the others.
        """
        work = push.workload
        if work is None:
            raise RuleError(f"a push from worker number {push.worker} has no workload")
        if self.usual and (work.usual, work.part_examples) != (self.usual, self.part_examples):
            raise RuleError(
                f"worker number {push.worker} has steps of {work.usual} x {work.part_examples} examples, the others of "
                f"{self.usual} x {self.part_examples}: with balance='speed', give all workers the same batch_size and "
                "accumulate; their shares make up for their speeds"
            )

    def after(self, pushes: Iterable[Push], workers: Iterable[int]) -> Balance:
        """Returns the balance after an update of these pushes, with the shares of these workers."""
        noted, present = self._with_measurements(pushes), frozenset(workers)
        if not noted.usual or not present:
            return noted
        changed = frozenset(noted.shares) != present
        if not noted.shares and len(present) == self.planned:
            changed = False  # all have the usual parts
        measured = [noted.measured.get(worker, Measured()) for worker in present]
        enough = min(one.steps for one in measured) >= MEASURED_STEPS
        enough = enough and max(one.seconds for one in measured) >= MEASURED_S
        if not (changed or enough):
            return noted
        known = {worker: one.seconds / one.parts for worker, one in noted.measured.items() if one.parts}
        costs = {worker: cost for worker, cost in {**noted.costs, **known}.items() if worker in present}
        usual_cost = sum(costs.values()) / len(costs) if costs else 1.0
        all_costs = {worker: costs.get(worker, usual_cost) for worker in present}
        shares = divided(max(self.planned * noted.usual, len(present)), all_costs)
        if not changed:
            now = {worker: noted.shares.get(worker, noted.usual) for worker in present}
            if _step_s(shares, all_costs) > (1 - GAIN) * _step_s(now, all_costs):
                shares = dict(noted.shares)
        return replace(noted, shares=shares, costs=costs, measured={})

    def is_sound(self, most: int) -> bool:
        """Whether this received balance is within bounds; `most`: the highest worker number."""
        numbers = [self.planned, *self.shares, *self.costs, *self.measured]
        seconds = [*self.costs.values(), *(one.seconds for one in self.measured.values())]
        counts = [self.usual, self.part_examples, *self.shares.values()]
        counts += [count for one in self.measured.values() for count in (one.steps, one.parts)]
        return (
            all(0 <= number <= most for number in numbers)
            and all(0 <= second < math.inf for second in seconds)
            and all(0 <= count < 1 << 53 for count in counts)
        )

    def _with_measurements(self, pushes: Iterable[Push]) -> Balance:
        measured, usual, part_examples = dict(self.measured), self.usual, self.part_examples
        for push in sorted(pushes, key=lambda push: (push.worker, push.sequence)):
            work = push.workload
            if work is None:
                continue
            usual, part_examples = usual or work.usual, part_examples or work.part_examples
            if 0 < work.seconds <= LONGEST_S:
                before = measured.get(push.worker, Measured())
                measured[push.worker] = Measured(
                    before.steps + 1, before.seconds + work.seconds, before.parts + work.parts
                )
        return replace(self, usual=usual, part_examples=part_examples, measured=measured)


def divided(parts: int, costs: Mapping[int, float]) -> dict[int, int]:
    """Returns parts for each worker, at least one, that let the slowest finish as early as possible.

    Args:
      parts: in all, at least as many as there are workers.
      costs: seconds per part of each worker.
    """
    slowest_first = sorted(costs, key=lambda worker: (-costs[worker], worker))
    speeds = {worker: 1.0 / max(costs[worker], SHORTEST_S) for worker in slowest_first}
    left, total, shares = parts, math.fsum(speeds.values()), {}
    for place, worker in enumerate(slowest_first):
        # A worker too slow for one part gets one all the same; the others divide the rest.
        proportional = max(0, math.floor(left * speeds[worker] / total)) if total > 0 else 1
        if proportional >= 1:
            for other in slowest_first[place:]:
                shares[other] = math.floor(left * speeds[other] / total)
            break
        shares[worker] = 1
        left, total = left - 1, math.fsum(speeds[other] for other in slowest_first[place + 1 :])
    ready = [((shares[worker] + 1) * costs[worker], worker) for worker in shares]
    heapify(ready)
    for _ in range(parts - sum(shares.values())):  # fewer than there are workers
        worker = ready[0][1]
        shares[worker] += 1
        heapreplace(ready, ((shares[worker] + 1) * costs[worker], worker))
    return shares


def _step_s(shares: Mapping[int, int], costs: Mapping[int, float]) -> float:
    return max(share * costs[worker] for worker, share in shares.items())
