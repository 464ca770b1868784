"""Sync(balance="speed"): shares by measured speed, with no thread and a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pytest

from trainband.errors import ProtocolError, Refused
from trainband.ps.rules import Async, Sync
from trainband.ps.rules.base import Begin, Join, Leave, Push, RuleError, RuleState
from trainband.ps.rules.registry import check_rule_state, rule_of
from trainband.ps.rules.synchronous import SyncState
from trainband.wire.messages.workload import Workload

USUAL, PART = 16, 8
"""Parts of a worker's usual batch, and examples in a part."""


@dataclass
class Machines:
    """Workers that take so many seconds for a part, and the rule between them."""

    costs: dict[int, float]
    """Seconds a part."""
    overhead_s: float = 0.0
    """Of each step, whatever its size."""
    state: RuleState = field(init=False)
    sequences: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = Sync(balance="speed").start(0, len(self.costs))
        self.state, _ = self.state.advance(Begin(1 << 40))
        for worker in self.costs:
            self.come(worker)

    def come(self, worker: int) -> None:
        self.state, _ = self.state.advance(Join(worker))

    def leave(self, worker: int) -> None:
        del self.costs[worker]
        self.state, _ = self.state.advance(Leave(worker))

    def shares(self) -> dict[int, int]:
        return {worker: self.state.share(worker) or USUAL for worker in self.costs}

    def step(self) -> tuple[int, float]:
        """One update: its parts, and the seconds until the last worker was ready."""
        version, shares, slowest_s = self.state.version, self.shares(), 0.0
        for worker, parts in shares.items():
            seconds = self.overhead_s + parts * self.costs[worker]
            slowest_s = max(slowest_s, seconds)
            sequence = self.sequences[worker] = self.sequences.get(worker, 0) + 1
            workload = Workload(seconds, parts, USUAL, PART)
            self.state, _ = self.state.advance(Push(worker, sequence, version, parts * PART, workload))
        assert self.state.version == version + 1
        return sum(shares.values()), slowest_s

    def run(self, seconds: float) -> float:
        """Trains so long; returns parts per second of the time after the first half."""
        now, counted, since = 0.0, 0, None
        while now < seconds:
            parts, took_s = self.step()
            now += took_s
            if since is not None:
                counted += parts
            elif now > seconds / 2:
                since = now
        assert since is not None
        return counted / (now - since)


def summed(costs: Mapping[int, float]) -> float:
    """Parts per second of machines that do not wait for one another."""
    return sum(1 / cost for cost in costs.values())


def test_shares_follow_speeds_of_4_to_2_to_1() -> None:
    machines = Machines({0: 0.01, 1: 0.02, 2: 0.04})
    assert machines.step()[0] == 3 * USUAL
    assert machines.run(20.0) >= 0.95 * summed(machines.costs)
    assert machines.shares() == {0: 28, 1: 14, 2: 6}
    assert machines.step()[0] == 3 * USUAL  # an update has as many examples as ever


def test_steps_with_a_fixed_cost_end_at_the_same_time_too() -> None:
    machines = Machines({0: 0.01, 1: 0.02, 2: 0.04}, overhead_s=0.1)
    machines.run(60.0)
    times = [0.1 + parts * machines.costs[worker] for worker, parts in machines.shares().items()]
    assert max(times) <= 1.15 * min(times)  # within a part of the slowest


def test_shares_change_when_a_worker_slows_down_leaves_and_comes() -> None:
    machines = Machines({0: 0.01, 1: 0.01, 2: 0.01})
    machines.run(20.0)
    assert machines.shares() == {0: 16, 1: 16, 2: 16}
    machines.costs[1] = 0.03
    assert machines.run(20.0) >= 0.95 * summed(machines.costs)
    machines.leave(1)
    machines.step()
    assert machines.shares() == {0: 24, 2: 24}
    machines.costs[3] = 0.02
    machines.come(3)
    assert machines.shares() == {0: 24, 2: 24, 3: 1}
    machines.step()  # its first push comes late, and it is counted from then on
    machines.step()
    assert sum(machines.shares().values()) == 48
    assert machines.run(20.0) >= 0.95 * summed(machines.costs)


def test_a_worker_too_slow_for_one_part_has_one_all_the_same() -> None:
    machines = Machines({0: 0.01, 1: 10.0})
    machines.run(2000.0)
    assert machines.shares() == {0: 31, 1: 1}


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (None, "a push from worker number 1 has no workload"),
        (Workload(1.0, 16, 16, 4), "worker number 1 has steps of 16 x 4 examples, the others of 16 x 8"),
        (Workload(1.0, 8, 8, 8), "worker number 1 has steps of 8 x 8 examples, the others of 16 x 8"),
    ],
)
def test_a_push_that_cannot_be_counted_is_refused(workload: Workload | None, words: str) -> None:
    machines = Machines({0: 0.01, 1: 0.01})
    machines.step()
    with pytest.raises(RuleError, match=words):
        machines.state.advance(Push(1, 2, 1, 64, workload))


def test_the_state_travels_to_a_standby() -> None:
    machines = Machines({0: 0.01, 1: 0.02})
    machines.run(20.0)
    kept = msgspec.msgpack.encode(machines.state)
    there = msgspec.msgpack.decode(kept, type=SyncState)
    assert there == machines.state
    check_rule_state(there, there.version, set(), "ps:0")
    assert there.balance is not None
    for costs in ({0: float("nan")}, {-1: 1.0}):
        broken = SyncState(there.version, there.version, there.rule, balance=type(there.balance)(2, 16, 8, costs=costs))
        with pytest.raises(ProtocolError, match="contradicts"):
            check_rule_state(broken, broken.version, set(), "ps:0")


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match=r"Sync\.balance must be 'speed' or None, got 'fast'"):
        Sync(balance="fast")
    with pytest.raises(ValueError, match="balance='speed' cannot be combined with backups=1"):
        Sync(balance="speed", backups=1)
    with pytest.raises(ValueError, match="balance='speed' cannot be combined with aggregate=2"):
        Sync(balance="speed", aggregate=2)
    assert rule_of({**Sync(balance="speed").settings()}) == Sync(balance="speed")
    assert "balance" not in Sync().settings()  # tasks of an earlier version know the others
    with pytest.raises(Refused, match="does not accept"):
        rule_of({"name": "async", "staleness_scale": "speed"})
    assert rule_of({**Async().settings()}) == Async()
