"""Hundreds of jobs of workers that compute in lockstep, among faults: what they promise holds, and a bug is found."""

from __future__ import annotations

import pytest

from tests.simulation.faults import Crash
from tests.simulation.in_step.__main__ import main
from tests.simulation.in_step.job import Ended, Happened, Job, Outcome, Said, Trained, Waited
from tests.simulation.in_step.planted import PLANTED
from tests.simulation.in_step.promises import violations
from tests.simulation.in_step.scenario import Fault, Scenario, StaysAway
from tests.simulation.network import CALM

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
    kinds = "Crash Pause Cut Raises Hangs Strays Evaluates Restarts Doubles Crowds StaysAway"
    for fault in kinds.split():
        happened = [one for one in history if isinstance(one, Happened) and type(one.what).__name__ == fault]
        assert len(happened) >= 5, fault
    ends = [record.why for record in history if isinstance(record, Ended)]
    for why in (
        "well",
        "is gone: no heartbeat",
        "is gone: its connection",
        "has failed: OSError",
        "is stuck",
        "asks for",
        "waited 20",
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


def quiet(*faults: Fault) -> Scenario:
    """Two workers without other faults."""
    return Scenario.of(0)._replace(
        workers=2,
        per_call=1,
        limits=(20,),
        data=((60, 60),),
        stops=(None,),
        starts=(0.0, 0.1),
        step_s=(0.3, 0.3),
        not_finite=0.0,
        another_engine=False,
        weather=CALM,
        faults=faults,
    )


@pytest.mark.parametrize(
    ("absent", "whom", "advice"),
    [
        (0, "worker:0 at worker-0:2222", "check that it runs, and that its port can be reached from here"),
        (1, "worker:1", "check that it runs, and that it can reach worker-0:2222"),
    ],
)
def test_who_never_comes_is_named_meanwhile_and_at_last(absent: int, whom: str, advice: str) -> None:
    history = Job(quiet(StaysAway(0.0, f"worker:{absent}"))).run().history
    said = [one.text for one in history if isinstance(one, Said) and one.worker != absent]
    assert said == [f"waiting for {whom} to come up ({seconds} s)" for seconds in (2, 7, 12, 17)]
    (why,) = [one.why for one in history if isinstance(one, Ended) and one.worker != absent]
    assert why == f"DeadlineExceeded: waited 20.0 s for {whom} to come up; {advice}."


@pytest.mark.parametrize("of", [0, 1])
def test_one_that_is_killed_before_its_first_step_is_named_at_once(of: int) -> None:
    history = Job(quiet(Crash(2.5, f"worker:{of}", None))).run().history
    assert not any(isinstance(one, Waited) and one.exchange is not None for one in history)
    killed, end = (one for one in history if isinstance(one, Ended))
    assert (killed.worker, end.worker, end.at < 5.0) == (of, 1 - of, True)
    assert f"worker:{of} at worker-{of}:2222 is gone: its connection was lost" in end.why


@pytest.mark.smoke
def test_a_seed_is_the_same_job_every_time() -> None:
    assert run_seed(11).history == run_seed(11).history
    assert run_seed(12).history != run_seed(11).history


def test_the_command_shows_a_planted_bug(capsys: pytest.CaptureFixture[str]) -> None:
    bug = PLANTED["messenger"]
    assert main(["--seed", str(bug.first), "--planted", "messenger"]) == 1
    assert f"BROKEN  {bug.finds}" in capsys.readouterr().out
    assert main(["--seed", str(bug.first)]) == 0
