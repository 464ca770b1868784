"""Snapshots, alerts and events: pure functions of what the ps of a job answer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.monitor.jobs import ps_status, replica_state, worker_status

from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import PsStatus
from trainband.monitor.alerts import MOST, find_alerts
from trainband.monitor.assembly import Answer, assemble
from trainband.monitor.snapshot import JobSnapshot
from trainband.monitor.timeline import events_between

START = JobSnapshot(at=0.0, source="10.0.0.0:2222")


def assembled(before: JobSnapshot, *statuses: PsStatus | None, at: float | None = None) -> JobSnapshot:
    """A second later, the ps give these answers; `None` for none."""
    now = before.at + 1.0 if at is None else at
    answers = {
        number: Answer(f"10.0.0.{number}:2222", status, "" if status else "nobody listens", now)
        for number, status in enumerate(statuses)
    }
    return assemble(before, answers, now)


def kinds(before: JobSnapshot, after: JobSnapshot) -> list[tuple[str, str]]:
    return [(event.kind, event.task) for event in events_between(before, after)]


@pytest.mark.smoke
def test_a_snapshot_has_what_the_ps_tell() -> None:
    job = assembled(START, ps_status(0, version=10), ps_status(1, version=9, bytes_in=500))
    assert (job.state, job.global_step, job.last_step, job.rate) == ("running", 10, 100, 5.0)
    assert job.left_s == 18.0
    assert job.bytes_in == 1500, "of both"
    later = assembled(job, ps_status(0, version=15, bytes_in=4000), ps_status(1, version=14, bytes_in=500))
    assert later.bytes_in_rate == 3000.0
    assert later.since == job.since


def test_shard_0_may_be_on_another_ps() -> None:
    job = assembled(START, ps_status(0, version=10), ps_status(1, version=9))
    both = (replica_state(1, 1, "primary", version=13), replica_state(0, 1, "primary", term=2, version=14))
    moved = assembled(job, None, ps_status(1, version=13, replicas=both))
    assert moved.global_step == 14
    assert moved.state == "running"
    assert [view.up for view in moved.ps] == [False, True]
    assert ("failover", "ps:1") in kinds(job, moved)
    assert ("silent", "ps:0") in kinds(job, moved)
    assert [alert.kind for alert in moved.alerts] == ["silent_ps", "no_standby", "no_standby"]


def test_a_job_that_falls_silent_has_ended_or_is_unreachable() -> None:
    job = assembled(START, ps_status(version=50))
    silent = assembled(job, None)
    assert (silent.state, silent.global_step, silent.rate) == ("unreachable", 50, 0.0)
    assert silent.workers == job.workers, "what was known stays"
    assert kinds(job, silent) == [("unreachable", ""), ("silent", "ps:0")]
    assert assembled(silent, None, at=9.0).state == "unreachable"
    assert assembled(silent, None, at=20.0).state == "ended", "at 5 steps/s it has made its 50 others"
    assert assembled(assembled(START, ps_status(version=100)), None).state == "ended"
    assert assembled(job, ps_status(version=100, ended=True)).state == "ended"
    assert assembled(START, None).state == "waiting"


def test_a_job_that_was_restarted_from_a_checkpoint() -> None:
    silent = assembled(assembled(START, ps_status(version=50)), None)
    again = assembled(silent, ps_status(version=40, incarnation="other"))
    assert kinds(silent, again) == [("reachable", ""), ("restored", ""), ("restarted", "ps:0")]


EVENTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # a worker before, after -> the event
    ({}, {"presence": "lost"}, "lost"),
    ({}, {"presence": "failed", "failure": "ValueError"}, "failed"),
    ({}, {"presence": "preempted"}, "preempted"),
    ({}, {"presence": "left"}, "left"),
    ({"presence": "lost"}, {"pid": 5}, "returned"),
    ({}, {"pid": 5}, "returned"),
    ({}, {"stalled_s": 3.0}, "stuck"),
    ({"stalled_s": 3.0}, {}, "moving"),
    ({}, {"non_finite_losses": 1}, "non_finite"),
]


@pytest.mark.parametrize(("was", "now", "kind"), EVENTS, ids=lambda value: str(value)[:40])
def test_what_happens_to_workers(was: dict[str, Any], now: dict[str, Any], kind: str) -> None:
    before = assembled(START, ps_status(workers=(worker_status(**was),)))
    after = assembled(before, ps_status(workers=(worker_status(**now),)))
    assert kinds(before, after) == [(kind, "worker:0")]
    assert kinds(after, assembled(after, ps_status(workers=(worker_status(**now),)))) == [], "told once"


def test_what_happens_to_many_at_once_is_one_event() -> None:
    live = assembled(START, ps_status(workers=tuple(worker_status(f"worker:{number}") for number in range(1000))))
    began, joined = events_between(START, live)
    assert (began.kind, joined.kind, joined.severity) == ("began", "joined", "good")
    assert joined.text == "1,000 workers joined: worker:0, worker:1, worker:2 and 997 others."
    lost = replace(live.workers[5], presence="lost")
    after = replace(live, workers=(*live.workers[:5], lost, *live.workers[6:]))
    assert kinds(live, after) == [("lost", "worker:5")]


def test_joins_checkpoints_and_standbys() -> None:
    one = assembled(START, ps_status())
    assert kinds(START, one) == [("began", ""), ("joined", "worker:0")]
    checkpoint = CheckpointStatus(10, 4096, 0.5)
    replicas = (replica_state(0, 0, "primary", standby=1, version=10),)
    two = assembled(
        one, ps_status(checkpoint=checkpoint, replicas=replicas, workers=(worker_status(), worker_status("worker:1")))
    )
    assert kinds(one, two) == [("standby", "ps:1"), ("joined", "worker:1"), ("checkpoint", "")]
    three = assembled(two, ps_status(replicas=(replica_state(0, 0, "primary", term=2, version=10),)))
    assert ("standby_lost", "ps:1") in kinds(two, three)
    assert [alert.kind for alert in three.alerts] == ["no_standby"]


def test_alerts_name_what_is_wrong_and_stay_few() -> None:
    workers = (
        worker_status("worker:0", stalled_s=20.0),
        worker_status("worker:1", presence="failed", failure="ValueError: no data"),
        worker_status("worker:2", refused=3),
        worker_status("worker:3", presence="lost", heard_s=30.0),
    )
    job = assembled(START, ps_status(workers=workers, waiting_for=("worker:0",)))
    found = {alert.task: (alert.kind, alert.severity) for alert in job.alerts}
    assert found == {
        "worker:0": ("stuck", "error"),
        "worker:1": ("failed", "error"),
        "worker:2": ("non_finite", "warning"),
        "worker:3": ("lost", "warning"),
    }
    many = tuple(worker_status(f"worker:{number}", refused=1) for number in range(1000))
    assert len(find_alerts(replace(job, workers=many))) == MOST + 1
    assert find_alerts(replace(job, state="ended", workers=(worker_status(stalled_s=5.0),))) == ()
