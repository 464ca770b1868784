"""The simulation can fail: each planted bug is found, and said to be what it is."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import main
from tests.simulation.checks.liveness import STUCK
from tests.simulation.checks.updates import LOST
from tests.simulation.faults import Crash, Cut, Trouble
from tests.simulation.network import CALM
from tests.simulation.planted import NEVER_FREES, PLANTED, UNCONDITIONAL
from tests.simulation.run import failing, run_scenario
from tests.simulation.scenario import Scenario
from trainband.data.pieces import SourceSettings
from trainband.ps.rules import Async

LONG = ("unfenced", "steers-alone", "saves-at-once")
"""What takes half a minute or more of a core to be found."""

SEEDS = 100
"""Among so many, from its first, a planted bug must show."""


@pytest.mark.limit(400)  # it computes all the time
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PLANTED]
)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = PLANTED[name]
    for seed in range(bug.first, bug.first + SEEDS):
        if bug.finds in {violation.promise for violation in bug.outcome(seed).violations}:
            return
    pytest.fail(f"{SEEDS} schedules did not show {bug.finds!r}")


def test_pieces_that_are_reserved_for_a_worker_that_does_not_come_back() -> None:
    scenario = Scenario(
        seed=2,
        rule=Async(),
        workers=2,
        shards=1,
        updates=None,
        source=SourceSettings(40, 4, 1, 0, False),
        batch=1,
        step_s=(1.0, 1.0),
        checkpoint_every=1,
        trouble=Trouble(8.0, CALM, (Crash(6.0, "worker:1", None), Crash(6.05, "ps:0", 1.0))),
    )
    assert not run_scenario(scenario).violations
    found = run_scenario(scenario, NEVER_FREES).violations
    assert [violation.promise for violation in found] == [STUCK]


@pytest.mark.limit(400)
@pytest.mark.slow
def test_a_vote_request_of_one_that_has_handed_over_has_a_condition() -> None:
    """The other ps may have been let go on without what it was handed."""
    scenarios = [
        Scenario(
            seed=seed,
            rule=Async(),
            workers=3,
            shards=2,
            updates=300,
            source=None,
            batch=1,
            step_s=(0.3, 0.3, 0.6),
            checkpoint_every=0,
            standbys=1,
            trouble=Trouble(
                40.0, CALM, (Crash(7.0, "ps:0", 1.0),), at_failback=(Cut(0.0, "ps:1", "ps:0", 20.0, both_ways=True),)
            ),
        )
        for seed in range(12)
    ]
    assert not [violation for scenario in scenarios for violation in run_scenario(scenario).violations]
    found = [run_scenario(scenario, UNCONDITIONAL).violations for scenario in scenarios]
    assert LOST in {violation.promise for violations in found for violation in violations}


def test_the_command_shows_a_planted_bug(capsys: pytest.CaptureFixture[str]) -> None:
    bug = PLANTED["piece-again"]
    outcome = next(failing(0, SEEDS, bug.rule, bug.plant))
    seed = str(outcome.scenario.seed)
    assert main(["--seed", seed, "--rule", bug.rule, "--planted", "piece-again"]) == 1
    shown = capsys.readouterr().out
    assert f"BROKEN  {bug.finds}" in shown
    assert "Applied(" in shown
    assert main(["--seed", seed, "--rule", bug.rule, "--planted", "piece-again", "--seeds", "1"]) == 1
    assert f"--seed {seed} --rule {bug.rule} --planted piece-again" in capsys.readouterr().out
    assert main(["--seed", "3", "--rule", "async", "--seeds", "2"]) == 0
