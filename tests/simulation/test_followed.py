"""A reader follows simulated jobs whose ps die, are cut off and take over: what it hands out, the shards really had."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from tests.simulation.faults import Crash, Cut, Fault, Pause, Terminate
from tests.simulation.history import Final, Promoted, Record, Restored
from tests.simulation.job import TIMEOUTS
from tests.simulation.network import TaskTransport, Weather
from tests.simulation.process import Process
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.test_endings import Lasting
from tests.simulation.test_shipped import scenario
from trainband.errors import PeerError
from trainband.ps.reader.follower import Follower, FollowState, FollowStatus
from trainband.ps.rules import Async, Sync


class Read(NamedTuple):
    """A version that was handed out: of each shard its version, and the updates that made its value."""

    at: float
    versions: tuple[int, ...]
    values: tuple[Any, ...]
    is_cut: bool


class Followed(Lasting):
    """With a reader that begins with the job and sees its end."""

    def run(self) -> list[Record]:
        self.reads: list[Read] = []
        self.states: list[FollowStatus] = []
        process = Process("reader", 0, "another machine", self.scheduler, random.Random(self.scenario.seed))
        process.failed = lambda failed: self._failed(process, failed)
        self._processes.insert(0, process)
        runtime = SimulatedRuntime(process, self._started_at)
        follower = Follower(
            "ps-0:2222",
            transport=TaskTransport(self.network, process),
            timeouts=TIMEOUTS,
            say=self._speaker(process),
            runtime=runtime,
        )

        def record(version: Any) -> None:
            values = tuple(self.values.value([version.tensors[f"params/v{i}"]]) for i in range(self.scenario.shards))
            self.reads.append(Read(self.scheduler.now, version.versions, values, version.is_cut))

        def follow() -> None:
            while True:
                try:
                    record(follower.first())
                    break
                except PeerError:
                    runtime.sleep(0.5)
            while (version := follower.next(lambda: follower.status.state is FollowState.ENDED)) is not None:
                record(version)
                self.states.append(follower.status)
            self.states.append(follower.status)

        process.thread(follow, "main").start()
        return super().run()

    def _conclude(self) -> None:
        super()._conclude()
        self.scheduler.run(self.scheduler.now + 30.0, lambda: self._has_seen_the_end)

    @property
    def _has_seen_the_end(self) -> bool:
        return bool(self.states) and self.states[-1].state is FollowState.ENDED


def followed(seed: int, *faults: Fault, **settings: Any) -> tuple[Followed, list[Record], dict[int, Final]]:
    """(the world, its history, what each shard held at the end)."""
    given: dict[str, Any] = {"checkpoint_every": 0, "updates": 60, "over_s": 60.0, **settings}
    world = Followed(scenario(seed, *faults, **given))
    history = world.run()
    return world, history, {record.shard: record for record in history if isinstance(record, Final)}


FAULTS: dict[str, tuple[Fault, ...]] = {
    "dies": (Crash(6.0, "ps:0", 8.0),),
    "dies for good": (Crash(6.0, "ps:1", None),),
    "cut off": (Cut(5.0, "ps:0", "", 12.0, both_ways=True),),
    "stopped": (Pause(5.0, "ps:1", 9.0),),
    "asked to end": (Terminate(5.0, "ps:0"),),
    "one after the other": (Crash(5.0, "ps:0", 3.0), Crash(16.0, "ps:1", 3.0)),
}


@pytest.mark.parametrize(("rule", "updates"), [(Async(), 200), (Sync(), 45)], ids=["async", "sync"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_read_where_a_standby_takes_over_is_of_the_shard_and_never_goes_back(
    fault: str, rule: Any, updates: int
) -> None:
    world, history, finals = followed(4, *FAULTS[fault], standbys=1, rule=rule, updates=updates)
    assert len(finals) == 2
    for shard, final in finals.items():
        versions = [read.versions[shard] for read in world.reads]
        assert versions == sorted(versions)
        for read in world.reads:
            assert read.values[shard] == final.value[: read.versions[shard]]
            assert len(read.values[shard]) == read.versions[shard]
        assert versions[-1] == final.version == updates
    assert world.states[-1].state is FollowState.ENDED
    assert f"job ended at step {updates}" in world.states[-1].detail
    promoted = [record.at for record in history if isinstance(record, Promoted)]
    assert len([read for read in world.reads if read.at > min(promoted)]) >= 3


def test_all_shards_are_read_at_one_step_of_a_synchronous_job() -> None:
    world, _, _ = followed(1, rule=Sync(), shards=3)
    assert len(world.reads) > 10
    assert sum(read.is_cut for read in world.reads) >= 0.9 * len(world.reads)


@pytest.mark.parametrize("seed", [0, 2])
def test_a_ps_that_comes_back_with_an_older_checkpoint_is_followed(seed: int) -> None:
    world, history, finals = followed(seed, Crash(8.0, "ps:1", 2.0), checkpoint_every=5, updates=150)
    assert any(isinstance(record, Restored) and record.version > 0 for record in history)
    assert world.reads[-1].versions == tuple(final.version for _, final in sorted(finals.items()))
    assert world.reads[-1].values == tuple(final.value for _, final in sorted(finals.items()))


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_loses_calls_and_breaks_streams(seed: int) -> None:
    weather = Weather(lost_call=0.1, doubled_call=0.05, broken_stream=0.1, slow=0.1)
    world, _, finals = followed(seed, standbys=1, weather=weather, over_s=20.0)
    assert world.reads[-1].values == tuple(final.value for _, final in sorted(finals.items()))
