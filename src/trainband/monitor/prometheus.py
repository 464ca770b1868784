"""What Prometheus is told: of a task that trains, and of a whole job by whoever has asked all its ps.

The families of a ps are in `ps/metrics.py`, and what every process has, in `runtime/process_metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainband.ps.metrics import ps_families
from trainband.ps.statistics import PsStatus
from trainband.runtime.exposition import Family, exposition
from trainband.spmd.report import TaskStatistics
from trainband.wire.messages import UNLIMITED


def worker_families(statistics: TaskStatistics) -> list[Family]:
    """What a task that trains tells of itself."""
    one = statistics
    labels = (("task", one.task),)

    def family(kind: str, name: str, text: str, value: float | None) -> Family:
        found = Family("counter" if kind == "counter" else "gauge", f"trainband_worker_{name}", text)
        found.add(value, *labels)
        return found

    checkpoint = one.checkpoint
    used, limit = float(one.device_memory_bytes), float(one.device_memory_limit_bytes)
    seconds = Family("counter", "trainband_worker_step_seconds_total", "What its steps have spent, by their parts.")
    for part, spent in one.seconds.items():
        seconds.add(spent, *labels, ("part", part))
    return [
        family("gauge", "chief", "Whether it has the chief's duties now.", float(one.is_chief)),
        family("gauge", "global_step", "Updates of the whole job, as far as it knows.", one.global_step),
        family("gauge", "target_global_step", "Where the training ends, if it knows.", one.last_step),
        family("counter", "steps_total", "Its steps, with those before it was resumed from a checkpoint.", one.steps),
        seconds,
        family("counter", "examples_total", "Examples of these steps, in this process.", one.examples),
        family("counter", "refused_gradients_total", "Its gradients that were not finite, and refused.", one.refused),
        family("gauge", "loss", "Its latest loss.", one.loss),
        family("gauge", "device_memory_bytes", "Memory in use on its devices.", used if limit else None),
        family("gauge", "device_memory_limit_bytes", "Memory of its devices that it can have.", limit or None),
        family(
            "gauge",
            "checkpoint_global_step",
            "Global step of the last checkpoint.",
            None if checkpoint is None else checkpoint.global_step,
        ),
        family("gauge", "checkpoint_size_bytes", "Its size.", None if checkpoint is None else float(checkpoint.nbytes)),
        family(
            "gauge",
            "checkpoint_duration_seconds",
            "How long it took.",
            None if checkpoint is None else checkpoint.seconds,
        ),
    ]


def job_families(statuses: Sequence[PsStatus]) -> list[Family]:
    """A whole job, by the statuses of all its ps that answer: what each tells, and what is true of the job.

    Of the workers, each ps has its own view, and only that of one ps is told here: ps:0's, where it answers.

    Args:
      statuses: one of each ps, as nearly of the same time as can be. None: the job cannot be reached.
    """
    found = [Family("gauge", "trainband_job_ps", "Its ps that answer.", {(): len(statuses)})]
    if not statuses:
        return found
    first = min(statuses, key=lambda status: (status.task != "ps:0", status.task))
    last = first.last_version
    held = {replica.shard: replica for status in statuses for replica in status.replicas if replica.role == "primary"}
    live = {worker.task for status in statuses for worker in status.workers if worker.presence == "live"}
    stuck = {worker.task for status in statuses for worker in status.workers if worker.stalled_s > 0}
    target = Family("gauge", "trainband_job_target_steps", "Where the training ends, if that is known.")
    target.add(last if 0 < last < UNLIMITED else None)
    spent = Family(
        "gauge", "trainband_job_worker_time_ratio", "Share of its time that a part of its steps takes, lately."
    )
    for worker in first.workers:
        for part, share in worker.time.items():
            spent.add(share, ("worker", worker.task), ("part", part))
    text = "Bytes of variables, on all ps."
    nbytes = sum(variable.nbytes for variable in first.variables)
    return [
        *found,
        Family("counter", "trainband_job_steps_total", "The global step.", {(): first.version}),
        target,
        Family("gauge", "trainband_job_ended", "Whether it has ended.", {(): float(first.ended)}),
        Family("gauge", "trainband_job_live_workers", "Workers that are in it.", {(): len(live)}),
        Family("gauge", "trainband_job_stuck_workers", "Those of them that push nothing.", {(): len(stuck)}),
        Family("gauge", "trainband_job_held_shards", "Shards that a ps which answers holds.", {(): len(held)}),
        Family("gauge", "trainband_job_variables_bytes", text, {(): nbytes}),
        spent,
        *ps_families(statuses, workers_of=first.task),
    ]


def job_exposition(statuses: Sequence[PsStatus]) -> str:
    """The page of metrics of a whole job, for whoever serves one: see `job_families`."""
    return exposition(job_families(statuses))
