"""Hundreds of jobs of workers that compute in lockstep, among faults: what they promise holds, and a bug is found."""

from __future__ import annotations

import pytest

from tests.simulation.in_step.__main__ import main
from tests.simulation.in_step.job import Ended, Happened, Job, Outcome, Said, Trained
from tests.simulation.in_step.planted import PLANTED
from tests.simulation.in_step.promises import violations
from tests.simulation.in_step.scenario import Scenario

CHUNK = 200
"""Seeds of one test: three seconds of a core."""


def run_seed(seed: int) -> Outcome:
    return Job(Scenario.of(seed)).run()


def kept_promises(first: int) -> list[Outcome]:
    outcomes = [run_seed(seed) for seed in range(first, first + CHUNK)]
    failed = [
        f"python -m tests.simulation.in_step --seed {outcome.scenario.seed}: {found[0]}"
        for outcome in outcomes
        if (found := violations(outcome))
    ]
    if failed:
        pytest.fail(f"{len(failed)} seeds fail:\n" + "\n".join(failed[:5]), pytrace=False)
    return outcomes


def test_every_promise_holds_under_every_seed() -> None:
    """And the seeds are as bad as they should be: what never happens in them is not tested by them."""
    outcomes = kept_promises(0)
    history = [record for outcome in outcomes for record in outcome.history]
    for fault in ("Crash", "Pause", "Cut", "Raises", "Hangs", "Strays", "Evaluates"):
        happened = [one for one in history if isinstance(one, Happened) and type(one.what).__name__ == fault]
        assert len(happened) > 5, fault
    ends = [record.why for record in history if isinstance(record, Ended)]
    for why in (
        "well",
        "is gone: no heartbeat",
        "is gone: its connection",
        "has failed: OSError",
        "is stuck",
        "asks for",
    ):
        assert sum(why in one for one in ends) > 5, why
    reasons = [record.reason for record in history if isinstance(record, Trained)]
    for reason in ("all updates are made", "used up", "enough for now"):
        assert sum(reason in one for one in reasons) > 5, reason
    said = [record.text for record in history if isinstance(record, Said)]
    for text in ("waiting for ", "which evaluates", "ERROR: "):
        assert sum(text in one for one in said) > 5, text


@pytest.mark.slow
@pytest.mark.parametrize("first", range(CHUNK, 4000, CHUNK))
def test_every_promise_holds_under_more_seeds(first: int) -> None:
    kept_promises(first)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = PLANTED[name]
    for seed in range(bug.first, bug.first + CHUNK):
        with bug.plant():
            outcome = Job(bug.scenario(seed)).run()
        if bug.finds in {violation.promise for violation in violations(outcome)}:
            return
    pytest.fail(f"{CHUNK} seeds did not show {bug.finds!r}")


@pytest.mark.smoke
def test_a_seed_is_the_same_job_every_time() -> None:
    assert run_seed(11).history == run_seed(11).history
    assert run_seed(12).history != run_seed(11).history


def test_the_command_shows_a_planted_bug(capsys: pytest.CaptureFixture[str]) -> None:
    bug = PLANTED["messenger"]
    assert main(["--seed", str(bug.first), "--planted", "messenger"]) == 1
    assert f"BROKEN  {bug.finds}" in capsys.readouterr().out
    assert main(["--seed", str(bug.first)]) == 0
