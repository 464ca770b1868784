"""The metrics of a ps, a task that trains and a whole job: names, values and what promtool thinks of them."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.monitor.prometheus_tools import promtool
from tests.monitor.ps_statuses import ps_status, worker_status

from trainband.job.checkpoints import CheckpointStatus
from trainband.job.reports import TaskStatistics
from trainband.monitor.prometheus import job_exposition, worker_families
from trainband.ps.metrics import ps_families
from trainband.runtime.exposition import exposition
from trainband.runtime.process_metrics import process_families
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.messages.replication import ReplicaState, Term

TRAINING = TaskStatistics(
    task="worker:0",
    is_chief=True,
    global_step=1500,
    last_step=6000,
    steps=750,
    examples=96_000,
    refused=2,
    loss=0.25,
    seconds={"data": 1.5, "compute": 20.25},
    checkpoint=CheckpointStatus(1400, 96, 0.25),
    device="NVIDIA H100 80GB HBM3",
    device_memory_bytes=41,
    device_memory_limit_bytes=64,
    memory_bytes=700,
    memory_parts={"params": 500, "rest": 200},
)
PAGES = {
    "ps": exposition([*process_families("ps:0"), *ps_families([ps_status()])]),
    "worker": exposition([*process_families("worker:0"), *worker_families(TRAINING)]),
    "job": job_exposition([ps_status(), ps_status("ps:1")]),
    "a job that is away": job_exposition([]),
}


def values_of(page: str) -> dict[str, float]:
    """Every sample's value by its name and labels, as Prometheus writes them."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}"
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.smoke
def test_a_ps_tells_of_itself_and_its_workers() -> None:
    found = values_of(PAGES["ps"])
    expected = {
        "trainband_ps_updates_total{task=ps:0}": 1500,
        "trainband_ps_target_updates{task=ps:0}": 6000,
        "trainband_ps_received_bytes_total{task=ps:0}": 1_500_000,
        "trainband_ps_loss{task=ps:0}": 0.5,
        "trainband_ps_learning_rate{task=ps:0}": 0.125,
        "trainband_ps_workers{task=ps:0,presence=live}": 2,
        "trainband_ps_checkpoint_global_step{task=ps:0}": 1400,
        "trainband_ps_replica_role{task=ps:0,shard=0,role=primary}": 1,
        "trainband_ps_replica_role{task=ps:0,shard=0,role=standby}": 0,
        "trainband_ps_replica_has_standby{task=ps:0,shard=0}": 1,
        "trainband_ps_replica_lag_records{task=ps:0,shard=0}": 4,
        "trainband_ps_worker_pushes_total{task=ps:0,worker=worker:1}": 120,
        "trainband_ps_worker_refused_pushes_total{task=ps:0,worker=worker:1}": 3,
        "trainband_ps_worker_stalled_seconds{task=ps:0,worker=worker:0}": 0,
        "trainband_ps_worker_stalled_seconds{task=ps:0,worker=worker:1}": 7.5,
        "trainband_ps_resident_memory_bytes{task=ps:0}": 7e8,
        "trainband_ps_worker_resident_memory_bytes{task=ps:0,worker=worker:1}": 2.5e9,
        "trainband_ps_memory_part_bytes{task=ps:0,part=state}": 6e8,
        "trainband_ps_worker_memory_part_bytes{task=ps:0,worker=worker:1,part=params}": 2e9,
        "trainband_ps_worker_device_memory_bytes{task=ps:0,worker=worker:1}": 4.1e10,
        "trainband_ps_worker_device_memory_limit_bytes{task=ps:0,worker=worker:1}": 6.4e10,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_what_is_not_known_is_left_out() -> None:
    lost = worker_status("worker:0", "lost", loss=None, memory_bytes=0, device_memory_limit_bytes=0)
    standby = ReplicaState(1, 0, "standby", "l", Term(3, 1, 0), 9, 1500, "a")
    status = ps_status(last_version=UNLIMITED, loss=None, checkpoint=None, workers=(lost,), replicas=(standby,))
    page = exposition(ps_families([status]))
    for name in (
        "target_updates",
        "loss",
        "worker_loss",
        "checkpoint_",
        "has_standby",
        "lag_records",
        "worker_resident",
        "worker_device_",
    ):
        assert f"trainband_ps_{name}" not in page
    assert values_of(page)["trainband_ps_workers{task=ps:0,presence=lost}"] == 1
    assert values_of(page)["trainband_ps_workers{task=ps:0,presence=live}"] == 0


def test_a_task_that_trains_tells_of_itself() -> None:
    found = values_of(PAGES["worker"])
    expected = {
        "trainband_worker_chief{task=worker:0}": 1,
        "trainband_worker_global_step{task=worker:0}": 1500,
        "trainband_worker_target_global_step{task=worker:0}": 6000,
        "trainband_worker_steps_total{task=worker:0}": 750,
        "trainband_worker_examples_total{task=worker:0}": 96_000,
        "trainband_worker_refused_gradients_total{task=worker:0}": 2,
        "trainband_worker_loss{task=worker:0}": 0.25,
        "trainband_worker_step_seconds_total{task=worker:0,part=compute}": 20.25,
        "trainband_worker_checkpoint_global_step{task=worker:0}": 1400,
        "trainband_worker_memory_bytes{task=worker:0}": 700,
        "trainband_worker_memory_part_bytes{task=worker:0,part=params}": 500,
        "trainband_worker_device_memory_bytes{task=worker:0}": 41,
        "trainband_worker_device_memory_limit_bytes{task=worker:0}": 64,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_a_job_is_told_of_once_though_each_of_its_ps_knows_its_workers() -> None:
    found = values_of(PAGES["job"])
    assert found["trainband_job_ps{}"] == 2
    assert found["trainband_job_steps_total{}"] == 1500
    assert found["trainband_job_live_workers{}"] == 2
    assert found["trainband_job_stuck_workers{}"] == 1
    assert found["trainband_job_held_shards{}"] == 2
    assert found["trainband_ps_updates_total{task=ps:1}"] == 1500
    assert found["trainband_ps_worker_pushes_total{task=ps:0,worker=worker:1}"] == 120
    assert "trainband_ps_worker_pushes_total{task=ps:1,worker=worker:1}" not in found
    assert values_of(PAGES["a job that is away"]) == {"trainband_job_ps{}": 0}


def test_names_that_others_chose_cannot_write_lines_of_the_page() -> None:
    hostile = '<script>"}\nup{job="x"} 0\\'
    status = ps_status(workers=(worker_status("worker:0", host=hostile, transport=hostile, device=hostile),))
    page = exposition(ps_families([status]))
    (info,) = [
        sample.labels
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.name == "trainband_ps_worker_info"
    ]
    assert (info["host"], info["transport"], info["device"]) == (hostile, hostile, hostile)
    promtool("check", "metrics", given=page)


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_names_and_units_follow_the_conventions(page: str) -> None:
    for family in text_string_to_metric_families(page):
        assert re.fullmatch(r"(trainband|process)_[a-z0-9_]+", family.name)
        assert not re.search(r"(_ms|_milliseconds|_minutes|_mb|_kb|_percent)\b", family.name)
        assert family.documentation.endswith((".", "1."))
        if family.type == "counter":  # whose `_total` this reader takes off the name of the family
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        else:
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_promtool_finds_nothing_to_say(page: str) -> None:
    assert promtool("check", "metrics", given=page) == ""
