"""The simulated tasks run the shipped code: what only that does is seen, and what was found in it stays fixed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.simulation.checks.failover import forgetful
from tests.simulation.faults import ARBITER, CHIEF, Crash, Cut, Fault, Terminate, Trouble
from tests.simulation.history import Applied, Arrived, Committed, Promoted, Record, Steered
from tests.simulation.network import CALM, Weather
from tests.simulation.run import run_scenario
from tests.simulation.scenario import Scenario
from tests.simulation.world import World
from trainband.ps.replication.replicator.replicator import Replicator
from trainband.ps.rules import Async, Sync
from trainband.ps.service.service import ParameterService
from trainband.ps.worker.client import JobClient


def scenario(seed: int, *faults: Fault, weather: Weather = CALM, over_s: float = 30.0, **settings: Any) -> Scenario:
    """A job of three workers on two ps that makes 40 updates, unless told otherwise."""
    given: dict[str, Any] = {
        "rule": Async(),
        "workers": 3,
        "shards": 2,
        "updates": 40,
        "source": None,
        "batch": 1,
        "step_s": (0.5, 0.5, 0.5),
        "checkpoint_every": 5,
    }
    return Scenario(seed=seed, trouble=Trouble(over_s, weather, faults), **{**given, **settings})


def history_of(one: Scenario) -> list[Record]:
    outcome = run_scenario(one)
    assert not outcome.violations
    return outcome.history


def test_tasks_are_the_shipped_classes() -> None:
    world = World(scenario(1, standbys=1))
    world.run()
    services = [service for _, service in world.services]
    assert {type(service) for service in services} == {ParameterService}
    replicators = [one for service in services for one in service.replicas.replicators.values()]
    assert {type(one) for one in replicators} == {Replicator}
    assert len(replicators) == 4
    clients = [process.observed.client for process in world._processes if process.name.startswith("worker")]  # type: ignore[attr-defined]  # noqa: SLF001
    assert {type(client) for client in clients} == {JobClient}


@pytest.mark.parametrize("seed", range(4))
def test_another_worker_takes_over_the_duties_of_a_chief_that_is_gone(seed: int) -> None:
    history = history_of(scenario(seed, Crash(4.0, CHIEF, None)))
    last = [record for record in history if isinstance(record, Committed) and record.complete][-1]
    assert last.global_step == 40
    assert not last.by.startswith("worker:0")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_arbiter_is_chosen_on_a_third_machine(seed: int) -> None:
    """A worker that shares the machine of a ps may die with it: another one is named when the arbiter is gone."""
    one = scenario(
        seed, Crash(4.0, ARBITER, None), standbys=1, updates=200, checkpoint_every=0, workers=4, step_s=(0.5,) * 4
    )
    hosts = one.hosts()
    world = World(one)
    arbiters: set[str] = set()

    def check() -> None:
        names = world._incarnations()  # noqa: SLF001
        terms = [notes.replica.failover.term for notes in world._replicas() if notes.shard == 0]  # noqa: SLF001
        arbiters.update(names[term.arbiter] for term in terms if term.arbiter in names)

    world.scheduler.at(10.0, check)
    world.run()
    assert len(arbiters) == 1
    assert {hosts[name] for name in arbiters}.isdisjoint({hosts["ps:0"], hosts["ps:1"]})


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_is_cut_off_asks_for_no_vote(seed: int) -> None:
    """It is this ps that is cut off: when it is back, it first looks whether the other one is there."""
    history = history_of(
        scenario(seed, Cut(5.0, "ps:1", "", 12.0, both_ways=True), standbys=1, checkpoint_every=0, updates=80)
    )
    ends = [record for record in history if isinstance(record, Promoted) and record.replica.startswith("ps:1")]
    assert not [record for record in ends if 5.0 < record.at < 17.0]


@pytest.mark.parametrize("seed", range(2))
def test_one_that_was_cut_off_takes_over_when_all_that_knew_more_are_dead(seed: int) -> None:
    """It is what `forgetful` finds, which excuses updates that are lost: so it must happen, and be found."""
    cut = Cut(4.0, "ps:1", "", 10.0, both_ways=True)
    one = scenario(seed, cut, Crash(12.0, "ps:0", 0.5), updates=150, standbys=1, checkpoint_every=0)
    assert forgetful(history_of(one))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_the_optimizer_are_set_on_the_standby_too(seed: int) -> None:
    history = history_of(scenario(seed, Crash(8.0, "ps:0", 5.0), standbys=1, steers=5, checkpoint_every=0, updates=60))
    assert any(isinstance(record, Promoted) for record in history)
    assert sum(isinstance(record, Steered) for record in history) > 4


def pushes_sent_again_after_their_update(seed: int) -> set[Any]:
    """Those of a job whose ps dies at 5 s."""
    history = history_of(
        scenario(
            seed,
            Crash(3.0, CHIEF, None),
            Crash(5.0, "ps:1", 3.0),
            rule=Sync(),
            standbys=1,
            checkpoint_every=0,
            updates=60,
            step_s=(0.1, 0.1, 0.1),
        )
    )
    made = {push for record in history if isinstance(record, Applied) for push in record.update}
    again = Counter((record.shard, record.push) for record in history if isinstance(record, Arrived))
    return made & {push for (_, push), times in again.items() if times > 1}


def test_workers_hear_from_the_successor_that_their_pushes_are_applied() -> None:
    """In some schedules the ps dies between an update that its standby has and the answers to its workers."""
    assert any(pushes_sent_again_after_their_update(seed) for seed in range(12))


@pytest.mark.parametrize("seed", range(12))
def test_a_stream_that_breaks_while_the_first_values_are_sent(seed: int) -> None:
    history_of(scenario(seed, weather=Weather(broken_stream=0.3), over_s=3.0))


@pytest.mark.parametrize("seed", range(6))
def test_a_gradient_of_params_that_a_ps_has_lost_since_is_not_sent(seed: int) -> None:
    """With overlap, a step is computed while a ps dies and comes back with the values of an older checkpoint."""
    history_of(scenario(seed, Crash(6.0, "ps:1", 1.0), overlap=True, checkpoint_every=0, step_s=(0.3, 0.05, 0.05)))


@pytest.mark.parametrize("seed", range(6))
def test_a_ps_that_ends_while_its_standby_is_away_sends_workers_to_the_other(seed: int) -> None:
    history_of(
        scenario(
            seed,
            Cut(5.0, "ps:1", "ps:0", 6.0, both_ways=True),
            Terminate(5.5, "ps:0"),
            standbys=1,
            rule=Sync(),
            checkpoint_every=0,
            updates=60,
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_shard_without_an_arbiter_waits_for_one(seed: int) -> None:
    """The arbiter dies with a ps: a worker that is named anew decides."""
    history_of(
        scenario(seed, Crash(6.0, ARBITER, 2.0), Crash(6.1, "ps:1", 9.0), standbys=1, checkpoint_every=0, updates=80)
    )
