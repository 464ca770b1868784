"""What is told of a job between two looks."""

from __future__ import annotations

from typing import Any

import pytest

from trainband.job.reports import Progress, ShardRow, WorkerRow
from trainband.monitor.history.changes import changes


def sample(*presences: str, shards: tuple[tuple[str, int, str], ...] = ()) -> Progress:
    workers = tuple(WorkerRow(f"worker:{i}", what, 1.0, 0.0, None) for i, what in enumerate(presences) if what)
    return Progress(10, None, 1.0, None, workers, shards=tuple(ShardRow(i, *row) for i, row in enumerate(shards)))


CASES: list[tuple[str, Any, Progress, list[str]]] = [
    ("the first look", None, sample("live", "live"), ["join worker:0 has joined", "join worker:1 has joined"]),
    ("alone", None, sample("live"), []),
    ("nothing", sample("live", "live"), sample("live", "live"), []),
    ("a join", sample("live"), sample("live", "live"), ["join worker:1 has joined"]),
    ("a death", sample("live", "live"), sample("live", "lost"), ["death worker:1 was lost"]),
    ("a return", sample("live", "lost"), sample("live", "live"), ["join worker:1 is back"]),
    ("an error", sample("live", "live"), sample("live", "failed"), ["death worker:1 left the job after an error"]),
    ("an end", sample("live", "live"), sample("live", "left"), ["leave worker:1 left the job"]),
    (
        "asked to end",
        sample("live", "live"),
        sample("live", "preempted"),
        ["leave worker:1 left the job when asked to"],
    ),
    ("gone", sample("live", "live", "live"), sample("live", "live"), ["leave worker:2 is no longer in the job"]),
    (
        "a failover",
        sample(shards=(("ps:0", 1, "a"), ("ps:1", 1, "b"))),
        sample(shards=(("ps:0", 1, "a"), ("ps:0", 2, "b"))),
        ["failover ps:0 now holds shard 1, in term 2"],
    ),
    (
        "values anew",
        sample(shards=(("ps:0", 1, "a"),)),
        sample(shards=(("ps:0", 1, "z"),)),
        ["restart shard 0 was initialised again, on ps:0"],
    ),
]


@pytest.mark.parametrize(("before", "now", "told"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_changes(before: Progress | None, now: Progress, told: list[str]) -> None:
    found = [f"{kind} {text}" for kind, text, _ in changes(before, now)]
    assert len(found) == len(told)
    assert all(one.startswith(begin) for one, begin in zip(found, told, strict=True)), found
