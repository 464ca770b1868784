"""What survives what: every fault on every kind of task, in every phase, under every update rule.

Not every combination, but every pair of them: the jobs are real, and each takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path

import pytest
from tests.cluster_faults.matrix import (
    EVERY_CASE,
    FAULTS,
    OF_WORKERS,
    PHASES,
    RULES,
    TARGETS,
    Case,
    every_case,
    run,
)

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

# A worker that no spec knows, which joins a job that runs.
CASES += [
    Case(*row)
    for row in [
        ("dies", "worker:2", "training", "sync"),
        ("stays dead", "worker:2", "start", "bounded"),
        ("pauses", "worker:2", "end", "async"),
        ("sleeps", "worker:2", "training", "bounded"),
        ("unplugged", "worker:2", "saving", "sync"),
        ("mute", "worker:2", "start", "backups"),
        ("deaf", "worker:2", "training", "async"),
        ("slow", "worker:2", "end", "sync"),
    ]
]

# SIGTERM takes nothing with it: neither an update nor, as the chief saves first, a checkpoint.
CASES += [
    Case(*row)
    for row in [
        ("leaves", "worker:1", "training", "async"),
        ("leaves", "worker:0", "training", "sync"),
        ("leaves", "worker:2", "training", "backups"),
        ("leaves", "worker:1", "saving", "bounded"),
        ("leaves", "worker:0", "saving", "async"),
        ("leaves", "worker:2", "saving", "sync"),
    ]
]

# Where each shard has a standby, a ps that dies takes nothing with it.
CASES += [
    Case(*row, standbys=1)
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
        ("dies twice", "ps:0", "training", "sync"),
        ("dies twice", "ps:1", "training", "async"),
        ("pauses", "ps:0", "start", "sync"),
        ("pauses", "ps:1", "saving", "async"),
        ("pauses", "ps:0", "end", "backups"),
        ("sleeps", "ps:1", "start", "bounded"),
        ("sleeps", "ps:0", "saving", "sync"),
        ("sleeps", "ps:1", "end", "async"),
        ("unplugged", "ps:0", "start", "backups"),
        ("unplugged", "ps:1", "saving", "sync"),
        ("unplugged", "ps:0", "end", "bounded"),
        ("mute", "ps:0", "training", "sync"),
        ("mute", "ps:1", "start", "async"),
        ("mute", "ps:0", "saving", "backups"),
        ("mute", "ps:1", "end", "bounded"),
        ("deaf", "ps:1", "start", "sync"),
        ("deaf", "ps:0", "saving", "async"),
        ("deaf", "ps:1", "end", "backups"),
        ("slow", "ps:1", "training", "backups"),
        ("slow", "ps:0", "start", "bounded"),
        ("slow", "ps:1", "saving", "async"),
        ("slow", "ps:0", "end", "sync"),
        # The chief decides who holds a shard; whatever happens to it, and to the others, happens to no shard.
        ("dies", "worker:0", "training", "sync"),
        ("stays dead", "worker:0", "training", "bounded"),
        ("sleeps", "worker:0", "training", "async"),
        ("unplugged", "worker:0", "training", "backups"),
        ("leaves", "worker:0", "training", "bounded"),
        ("leaves", "worker:1", "training", "sync"),
        ("dies", "worker:2", "training", "async"),
    ]
]


# What `make test` runs: every phase and rule, and the faults that nothing else tries on real tasks. Of workers that
# sleep, or are killed or asked to leave while they train, `tests/cluster_failures` has jobs; and the simulation tries
# hundreds of all kinds. The others are slow.
EVERY_RUN = {
    *(
        Case(*row)
        for row in [
            ("stays dead", "worker:0", "saving", "bounded"),
            ("unplugged", "worker:0", "training", "sync"),
            ("pauses", "ps:0", "start", "backups"),
            ("slow", "worker:2", "end", "sync"),
        ]
    ),
    *(
        Case(*row, standbys=1)
        for row in [
            ("dies", "ps:1", "training", "sync"),
            ("parted", "ps:0", "training", "sync"),
            ("dies after the chief", "ps:0", "training", "async"),
        ]
    ),
}

RUN = every_case() if os.environ.get(EVERY_CASE) == "product" else CASES


SMOKE = Case("dies", "ps:1", "training", "sync", standbys=1)


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    slow = [] if case in EVERY_RUN else [pytest.mark.slow, pytest.mark.limit(300)]
    return [*slow, *([pytest.mark.smoke] if case == SMOKE else [])]


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=_marks(case)) for case in RUN])
def test_the_job_survives(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path)


def test_every_run_has_everything_once() -> None:
    assert set(CASES) > EVERY_RUN
    for attribute, values in (
        ("fault", {*FAULTS, "parted", "dies after the chief"} - {"mute", "deaf", "sleeps"}),
        ("target", set(TARGETS) - {"worker:1"}),
        ("phase", set(PHASES)),
        ("rule", set(RULES)),
        ("standbys", {0, 1}),
    ):
        assert {getattr(case, attribute) for case in EVERY_RUN} == values, attribute


@pytest.mark.parametrize(
    ("faults", "kinds", "phases", "standbys"),
    [
        (FAULTS, set(TARGETS.values()), PHASES, 0),
        (OF_WORKERS, {"worker", "chief", "elastic"}, ("training", "saving"), 0),
        (FAULTS, {"ps"}, PHASES, 1),
    ],
)
def test_every_pair_occurs(faults: Iterable[str], kinds: set[str], phases: Iterable[str], standbys: int) -> None:
    values = (tuple(faults), tuple(sorted(kinds)), tuple(phases), RULES)
    wanted = {frozenset(pair) for one, other in combinations(values, 2) for pair in product(one, other)}
    missing = wanted - {pair for case in CASES if case.standbys == standbys for pair in case.pairs}
    assert not missing


def test_the_product_has_every_case_once() -> None:
    cases = every_case()
    assert set(CASES) < set(cases)
    assert len(set(map(str, cases))) == len(cases)
