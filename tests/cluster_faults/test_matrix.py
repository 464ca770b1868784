"""What survives what: every fault on every kind of task, in every phase, under every update rule.

Not every combination, but every pair of them: the jobs are real, and each takes seconds.
"""

from __future__ import annotations

import os
from itertools import combinations, product
from pathlib import Path

import pytest
from tests.cluster_faults.matrix import EVERY_CASE, FAULTS, PHASES, RULES, TARGETS, Case, Matrix

CASES = [
    Case(*row)
    for row in [
        ("dies", "worker:1", "start", "async"),
        ("dies", "worker:0", "training", "bounded"),
        ("dies", "ps:0", "saving", "sync"),
        ("dies", "worker:0", "start", "bounded"),
        ("dies", "ps:0", "training", "sync"),
        ("dies", "ps:1", "saving", "backups"),
        ("dies", "worker:1", "end", "async"),
        ("dies", "ps:1", "training", "bounded"),
        ("dies", "worker:1", "saving", "sync"),
        ("dies", "worker:0", "end", "backups"),
        ("dies", "worker:1", "training", "async"),
        ("dies", "worker:0", "saving", "bounded"),
        ("stays dead", "worker:1", "start", "sync"),
        ("stays dead", "worker:1", "training", "sync"),
        ("stays dead", "ps:0", "training", "backups"),
        ("stays dead", "ps:1", "saving", "async"),
        ("stays dead", "worker:1", "end", "bounded"),
        ("pauses", "ps:0", "start", "backups"),
        ("pauses", "ps:1", "training", "async"),
        ("pauses", "worker:1", "saving", "bounded"),
        ("pauses", "worker:0", "end", "sync"),
        ("sleeps", "ps:1", "start", "async"),
        ("sleeps", "worker:1", "training", "bounded"),
        ("sleeps", "worker:0", "saving", "sync"),
        ("sleeps", "ps:0", "end", "backups"),
        ("unplugged", "worker:1", "start", "bounded"),
        ("unplugged", "worker:0", "training", "sync"),
        ("unplugged", "ps:0", "saving", "backups"),
        ("unplugged", "ps:1", "end", "async"),
        ("mute", "worker:0", "start", "sync"),
        ("mute", "ps:0", "training", "backups"),
        ("mute", "ps:1", "saving", "async"),
        ("mute", "worker:1", "end", "bounded"),
        ("deaf", "ps:0", "start", "bounded"),
        ("deaf", "ps:1", "training", "sync"),
        ("deaf", "worker:1", "saving", "backups"),
        ("deaf", "worker:0", "end", "async"),
        ("slow", "ps:1", "start", "backups"),
        ("slow", "worker:1", "training", "async"),
        ("slow", "worker:0", "saving", "bounded"),
        ("slow", "ps:0", "end", "sync"),
        # Of a chief that stays away, another worker takes over what it has to do.
        ("stays dead", "worker:0", "start", "sync"),
        ("stays dead", "worker:0", "training", "async"),
        ("stays dead", "worker:0", "saving", "bounded"),
        ("stays dead", "worker:0", "end", "backups"),
        # A ps that dies when the job has no checkpoint yet is given the first values again.
        ("dies", "ps:0", "start", "async"),
        ("dies", "ps:1", "start", "backups"),
        # The updates that a ps loses after the last one was made are made anew.
        ("dies", "ps:1", "end", "backups"),
        ("dies", "ps:0", "end", "sync"),
    ]
]

# Where each shard has a standby, a ps that dies takes nothing with it.
CASES += [
    Case(*row, replicas=1)
    for row in [
        ("dies", "ps:0", "start", "async"),
        ("dies", "ps:1", "training", "sync"),
        ("dies", "ps:0", "saving", "bounded"),
        ("dies", "ps:1", "end", "backups"),
        ("stays dead", "ps:1", "start", "sync"),
        ("stays dead", "ps:0", "training", "bounded"),
        ("stays dead", "ps:1", "saving", "backups"),
        ("stays dead", "ps:0", "end", "async"),
        ("pauses", "ps:1", "training", "bounded"),
        ("sleeps", "ps:0", "training", "backups"),
        ("unplugged", "ps:1", "training", "async"),
        ("deaf", "ps:0", "training", "bounded"),
        ("parted", "ps:0", "training", "sync"),
        ("half parted", "ps:1", "training", "async"),
        ("dies after the chief", "ps:0", "training", "async"),
        ("dies after the chief", "ps:1", "training", "sync"),
        ("dies before the other", "ps:0", "training", "bounded"),
        ("dies before the other", "ps:1", "training", "backups"),
        ("dies before a worker", "ps:0", "training", "async"),
        ("dies unknown to a worker", "ps:0", "training", "sync"),
    ]
]


LATER = pytest.mark.skip(reason="one of the faults that `make test-faults` runs, beside those of every run")


def _is_of_every_run(case: Case) -> bool:
    dies_at_the_end = case.fault == "dies" and case.phase == "end" and case.target != "worker:1"
    return os.environ.get(EVERY_CASE) == "all" or case.phase == "training" or dies_at_the_end


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=() if _is_of_every_run(case) else LATER) for case in CASES]
)
def test_the_job_survives(case: Case, matrix: Matrix) -> None:
    matrix.expect_good_end(case)


def test_every_pair_occurs() -> None:
    values = (tuple(FAULTS), tuple(sorted(set(TARGETS.values()))), tuple(PHASES), RULES)
    wanted = {frozenset(pair) for one, other in combinations(values, 2) for pair in product(one, other)}
    missing = wanted - {pair for case in CASES for pair in case.pairs}
    assert not missing


CASE = CASES[0]


@pytest.mark.parametrize("failures", [0, 1, 2])
@pytest.mark.parametrize("twice", [False, True])
def test_a_case_that_fails_beside_another_may_pass_alone(failures: int, twice: bool, tmp_path: Path) -> None:
    begun: list[Path] = []

    def fails_at_first(case: Case, directory: Path) -> None:
        begun.append(directory)
        if len(begun) <= failures:
            pytest.fail(f"{case} has failed")

    with Matrix([CASE], tmp_path, fails_at_first, twice=twice) as matrix:
        if failures > twice:
            with pytest.raises(pytest.fail.Exception, match="has failed"):
                matrix.expect_good_end(CASE)
        else:
            matrix.expect_good_end(CASE)
    assert list(matrix.failed_once) == ([CASE] if failures and not failures > twice else [])
    assert len(set(begun)) == len(begun) == (2 if failures and twice else 1)
