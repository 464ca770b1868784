"""A single process's part in a job; jobs are in `tests/simulation/in_step`, real ones in
`tests/cluster_allreduce`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError
from trainband.spmd.process_activity import Activity
from trainband.spmd.process_group import ProcessGroup
from trainband.version import VERSION


class Connection:
    """A connection whose chief has come, and its store."""

    lost = False

    def __init__(self, *_: Any, **__: Any) -> None:
        self.store = self
        self.values = {"messages/0/here/0": json.dumps({"version": VERSION, "job": "a job"})}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def list(self, prefix: str) -> dict[str, str]:
        return {key[len(prefix) :]: value for key, value in list(self.values.items()) if key.startswith(prefix)}

    def delete(self, prefix: str) -> None:
        pytest.fail(f"{prefix} is deleted")

    def seal(self) -> None:
        pass

    def cut_off(self) -> frozenset[int]:
        return frozenset()

    def hang_up(self) -> None:
        pass

    def close(self, *, well: bool) -> None:
        del well


@pytest.fixture
def second() -> Iterator[ProcessGroup]:
    """The second of two workers."""
    spec = ClusterSpec({"worker": ["localhost:1111", "localhost:2222"]})
    cluster = Cluster(spec=spec, task=Task("worker", 1))
    made = ProcessGroup(cluster, timeout_s=60.0, start_s=60.0, say=print, connect=Connection)
    yield made
    made.close()


def test_an_exchange_within_another_does_not_end_that() -> None:
    """The watcher ends only processes that wait."""
    activity = Activity(print, lambda: 1.0)
    activity.enter_exchange()
    activity.enter_exchange()
    activity.leave_exchange()
    assert activity.waits_since == 1.0
    activity.leave_exchange()
    assert activity.waits_since is None


def test_another_engine_counts_its_trainings_anew(second: ProcessGroup) -> None:
    with second.watched(5, 100):
        pass
    activity = second._activity  # noqa: SLF001 - as its heartbeats report it
    assert activity.step == (5, 100)
    second.start_engine()
    assert activity.step == (0, 0)


def test_who_has_left_the_job_computes_no_more_with_the_others(second: ProcessGroup) -> None:
    second.close("DataError: the pictures are gone")
    with pytest.raises(ClusterError, match=r"worker:1 has left the job \(DataError: the pictures are gone\)\. "):
        second.check()


def test_an_error_before_the_first_step_is_left_for_the_others(
    second: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", OSError("the disk is gone"), raising=False)
    second._close_at_exit()  # noqa: SLF001 - as Python does
    store = second._store  # noqa: SLF001
    assert store.get("gone/1") == "worker:1 has failed: OSError: the disk is gone"
    assert store.get("left/1") == "yes"
