"""What the processes of a job know of one another; real ones are in `tests/cluster_allreduce`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from trainband.cluster import Cluster, ClusterSpec, Task
from trainband.errors import ClusterError, PeerError
from trainband.spmd import process_group as module
from trainband.spmd.activity import OF_ALL
from trainband.spmd.failure_detector import BEAT_S, CROSSED_S, FailureDetector
from trainband.spmd.process_group import ProcessGroup
from trainband.version import VERSION

LATE_S, TIMEOUT_S = 1.5, 1.0


class Coordination:
    """What all have published, in this process; the last of the others came late."""

    lost = False
    values: ClassVar[dict[str, str]]

    def __init__(self, *_: Any, **__: Any) -> None:
        time.sleep(LATE_S)
        type(self).values = {"messages/0/here/0": json.dumps({"version": VERSION, "job": "a job"})}

    def set(self, key: str, word: str) -> None:
        time.sleep(0.001)  # as a call does, in which another thread may go on
        self.values[key] = word

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def list(self, prefix: str) -> dict[str, str]:
        time.sleep(0.001)
        return {key[len(prefix) :].lstrip("/"): word for key, word in self.values.items() if key.startswith(prefix)}

    def cut_off(self) -> frozenset[int]:
        return frozenset()

    def hang_up(self) -> None:
        pass

    def close(self, *, well: bool) -> None:
        del well


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessGroup]:
    """The second of two workers."""
    monkeypatch.setattr(module, "Coordination", Coordination)
    spec = ClusterSpec({"worker": ["localhost:1111", "localhost:2222"]})
    made = ProcessGroup(Cluster(spec=spec, task=Task("worker", 1)), timeout_s=TIMEOUT_S, start_s=60.0, say=print)
    yield made
    made.close()


def test_a_chief_is_not_gone_because_another_worker_came_late(second: ProcessGroup) -> None:
    time.sleep(BEAT_S + 0.3)  # the first look at the chief
    second.check()


def test_an_exchange_within_another_does_not_end_that(second: ProcessGroup) -> None:
    """The watcher ends only processes that wait."""

    def says_that_it_waits() -> bool:
        time.sleep(2.5 * BEAT_S)
        return bool(json.loads(Coordination.values["beat/1"])[2])

    with second.watched():
        with second.watched():
            pass
        assert says_that_it_waits()
    assert not says_that_it_waits()


class Chief:
    """The heartbeats of the other one, every tenth of a second."""

    def __init__(self) -> None:
        self._wait: tuple[str, str, int] | None = None
        self._is_silent = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beats)
        self._thread.start()

    def waits(self, place: str, about: str) -> None:
        self._wait = (f"messages/0/{place}", about, OF_ALL)

    def falls_silent(self) -> None:
        self._is_silent = True

    def goes_on(self, place: str) -> None:
        self._wait, self._is_silent = None, False
        Coordination.values[f"messages/0/{place}"] = json.dumps("a word")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _beats(self) -> None:
        number = 0
        while not self._ended.wait(0.1):
            number += 1
            if not self._is_silent:
                Coordination.values["beat/0"] = json.dumps([number, [0, 0], True, "", self._wait])


@pytest.fixture
def chief(second: ProcessGroup) -> Iterator[Chief]:
    del second  # only what one that is there publishes is read
    made = Chief()
    yield made
    made.end()


def test_two_that_wait_for_each_other_at_two_places_are_told(second: ProcessGroup, chief: Chief) -> None:
    chief.waits("batch/1", "comes to its first step")
    with pytest.raises(ClusterError, match="worker:1 begins a training, but worker:0 comes to its first step: workers"):
        second.receive("begin/2", "begins a training")


def test_where_one_has_waited_before_the_other_waits_says_nothing(second: ProcessGroup, chief: Chief) -> None:
    """The chief has gone on, and its heartbeat says so later."""
    chief.waits("batch/1", "comes to its first step")
    time.sleep(CROSSED_S + 2 * BEAT_S)
    chief.falls_silent()
    soon = threading.Timer(BEAT_S + 0.2, chief.goes_on, ["begin/2"])
    soon.start()
    assert second.receive("begin/2", "begins a training") == "a word"
    soon.join()


def test_another_replica_counts_its_trainings_anew(second: ProcessGroup) -> None:
    with second.watched(5, 100):
        pass
    second.begin_engine()
    time.sleep(2.5 * BEAT_S)
    assert json.loads(Coordination.values["beat/1"])[1] == [0, 0]


def test_who_has_left_the_job_computes_no_more_with_the_others(second: ProcessGroup) -> None:
    second.close("DataError: the pictures are gone")
    with pytest.raises(ClusterError, match=r"worker:1 has left the job \(DataError: the pictures are gone\)\. "):
        second.check()


class Detector(FailureDetector):
    """One that leaves the process alone."""

    def _end(self) -> None:
        pass

    def end_of_job(self) -> None:
        """Waits until it is known who is gone."""
        while True:
            self.check()
            time.sleep(0.05)


def test_one_that_falls_silent_is_not_said_to_live() -> None:
    """It has also not advanced for as long, and a little longer than it was silent."""
    coordination: Any = Coordination()
    tasks, addresses = ("worker:0", "worker:1"), ("a:1", "b:1")
    detector = Detector(coordination, tasks, addresses, 1, timeout_s=4.0, start_s=60.0, say=print)
    beats = threading.Thread(target=_beat_for, args=(0.9,))
    beats.start()
    detector.activity.settled = True
    detector.activity.watched(1, 1)
    with pytest.raises(PeerError, match="worker:0 at a:1 is gone: not heard for 4 s"):
        detector.end_of_job()
    detector.close()
    beats.join()


def _beat_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        Coordination.values["beat/0"] = json.dumps([number, [1, 0], False, "", None])
        time.sleep(0.1)
