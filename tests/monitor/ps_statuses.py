"""Statuses of ps that tests of metrics read."""

from __future__ import annotations

from typing import Any

import msgspec

from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import PsStatus, SliceStatus, VariableStatus, WorkerStatus
from trainband.wire.messages.replication import ReplicaState, Term


def worker_status(task: str, presence: str = "live", **changes: Any) -> WorkerStatus:
    """A worker in the middle of a job."""
    values: dict[str, Any] = {
        "task": task,
        "presence": presence,
        "host": "node17",
        "pid": 2350201,
        "transport": "shared memory",
        "pushes": 120,
        "refused": 3,
        "dropped": 2,
        "rate": 12.5,
        "staleness": 1.25,
        "loss": 0.5,
        "examples": 1200,
        "heard_s": 0.25,
        "failure": "",
        "device": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 2_500_000_000,
        "memory_parts": {"params": 2_000_000_000, "rest": 500_000_000},
        "device_memory_bytes": 41_000_000_000,
        "device_memory_limit_bytes": 64_000_000_000,
    }
    return WorkerStatus(**{**values, **changes})


def ps_status(task: str = "ps:0", **changes: Any) -> PsStatus:
    """A ps in the middle of a job with two workers, whose shard has a standby."""
    others = {field.name: 0 for field in msgspec.structs.fields(PsStatus) if field.type in (int, float)}
    number = int(task.partition(":")[2])
    term = Term(2, number, 1 - number)
    values: dict[str, Any] = {
        "task": task,
        "address": "10.0.0.7:2222",
        "incarnation": "a",
        "rule": {"name": "async"},
        "initialised": True,
        "version": 1500,
        "last_version": 6000,
        "ended": False,
        "loss": 0.5,
        "bytes_in": 1_500_000,
        "learning_rate": 0.125,
        "memory_bytes": 700_000_000,
        "memory_parts": {"state": 600_000_000, "rest": 100_000_000},
        "waiting_for": (),
        "workers": (worker_status("worker:0"), worker_status("worker:1", stalled_s=7.5)),
        "variables": (VariableStatus("kernel", (8, 3), "float32", 96, (SliceStatus("ps:0", 0, 8),)),),
        "checkpoint": CheckpointStatus(1400, 96, 0.25),
        "chief": "worker:0",
        "replicas": (ReplicaState(number, number, "primary", "l", term, 9, 1500, "a", behind=4),),
    }
    return PsStatus(**{**others, **values, **changes})
