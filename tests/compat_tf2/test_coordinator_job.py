"""Job: which coordinator a server serves, and when its process has to end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.credentials import TLS_DIRECTORY
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.coordinator import job as jobs
from trainband.compat.tf2.coordinator.job import Job
from trainband.compat.tf2.coordinator.link import network_of
from trainband.errors import DeadlineExceeded, RefusalCode, Refused


class Ticking:
    """A clock that advances by a second each time that it is read."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def stream(peer: str = "10.0.0.1:5") -> Any:
    return SimpleNamespace(alive=True, peer=peer)


def job_of(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(jobs, "LOOK_S", 0.0)
    return Job("worker:0", Ticking())


def test_the_first_coordinator_has_the_server_while_it_is_there() -> None:
    job, first, second = Job("ps:0"), stream(), stream("10.0.0.2:5")
    job.attach(first)
    with pytest.raises(Refused, match=r"ps:0 serves another coordinator, .* from 10\.0\.0\.1:5") as refused:
        job.attach(second)
    assert refused.value.code is RefusalCode.NAME_TAKEN
    first.alive = False
    job.attach(second)
    with pytest.raises(Refused):
        job.attach(stream())
    for one in (first, second):
        job.detach(one)
    job.attach(stream())


def test_a_closure_without_its_coordinator_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job, gone = job_of(monkeypatch), stream()
    job.attach(gone)
    with job.running(gone):
        gone.alive = False
        job.attach(stream())  # the next coordinator does not save it
        stuck = job.wait(lambda _: None, 300.0, 10.0)
        assert stuck is not None
        assert stuck.startswith("a closure still runs 10 s after its coordinator has gone")


def test_a_closure_that_ends_in_time_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job, one = job_of(monkeypatch), stream()
    job.attach(one)
    with job.running(one):
        ends = threading.Timer(0.05, job.end)
        ends.start()
        assert job.wait(lambda _: None, 300.0, 10.0) is None  # its coordinator is there
        ends.join()


def test_a_server_without_a_coordinator_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job, one = job_of(monkeypatch), stream()
    job.attach(one)
    job.detach(one)
    with pytest.raises(DeadlineExceeded, match="the coordinator to come to worker:0"):
        job.wait(lambda _: None, 20.0, 10.0)


def test_certificates_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TLS_DIRECTORY, str(tmp_path))
    with pytest.raises(InvalidArgumentError, match=r"worker:0 cannot use certificates .* TRAINBAND_SECRET_FILE"):
        network_of(Identity("worker:0"))


def test_a_server_says_that_its_cluster_has_no_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LOOK_S", 0.0)
    said: list[str] = []
    with pytest.raises(DeadlineExceeded, match="trainband run --chief"):
        Job("ps:0", Ticking(), has_chief=False).wait(said.append, 20.0, 10.0)
    assert all("whose cluster has no chief" in line for line in said)
    assert said
