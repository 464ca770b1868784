"""What is told of a job between two looks."""

from __future__ import annotations

from typing import Any

import pytest

from trainband.job.reports import Progress, ShardRow, WorkerRow
from trainband.monitor.history.changes import changes


def look(*presences: str, shards: tuple[tuple[str, int, str], ...] = ()) -> Progress:
    workers = tuple(WorkerRow(f"worker:{i}", what, 1.0, 0.0, None) for i, what in enumerate(presences) if what)
    return Progress(10, None, 1.0, None, workers, shards=tuple(ShardRow(i, *row) for i, row in enumerate(shards)))


CASES: list[tuple[str, Any, Progress, list[str]]] = [
    ("the first look", None, look("live", "live"), ["join worker:0 has joined", "join worker:1 has joined"]),
    ("alone", None, look("live"), []),
    ("nothing", look("live", "live"), look("live", "live"), []),
    ("a join", look("live"), look("live", "live"), ["join worker:1 has joined"]),
    ("a death", look("live", "live"), look("live", "lost"), ["death worker:1 was lost"]),
    ("a return", look("live", "lost"), look("live", "live"), ["join worker:1 is back"]),
    ("an error", look("live", "live"), look("live", "failed"), ["death worker:1 left the job after an error"]),
    ("an end", look("live", "live"), look("live", "left"), ["leave worker:1 left the job"]),
    ("asked to end", look("live", "live"), look("live", "preempted"), ["leave worker:1 left the job when asked to"]),
    ("gone", look("live", "live", "live"), look("live", "live"), ["leave worker:2 is no longer in the job"]),
    (
        "a failover",
        look(shards=(("ps:0", 1, "a"), ("ps:1", 1, "b"))),
        look(shards=(("ps:0", 1, "a"), ("ps:0", 2, "b"))),
        ["failover ps:0 now holds shard 1, in term 2"],
    ),
    (
        "values anew",
        look(shards=(("ps:0", 1, "a"),)),
        look(shards=(("ps:0", 1, "z"),)),
        ["restart shard 0 was initialised again, on ps:0"],
    ),
]


@pytest.mark.parametrize(("before", "now", "told"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_changes(before: Progress | None, now: Progress, told: list[str]) -> None:
    found = [f"{kind} {text}" for kind, text, _ in changes(before, now)]
    assert len(found) == len(told)
    assert all(one.startswith(begin) for one, begin in zip(found, told, strict=True)), found
