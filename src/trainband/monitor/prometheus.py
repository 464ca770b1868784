"""Prometheus metrics: of a task that trains, and of a whole job once all its ps have been asked.

The metric families of a ps are in `ps/metrics.py`, those of every process in `runtime/process_metrics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainband.job.reports import TaskStatistics
from trainband.job.statistics import PsStatus
from trainband.ps.metrics import ps_families
from trainband.runtime.exposition import Families, exposition
from trainband.wire.messages.calls import UNLIMITED


def worker_families(statistics: TaskStatistics) -> Families:
    """Returns the metrics of a task that trains."""
    one = statistics
    found = Families()
    task = ("task", one.task)

    def gauge(name: str, text: str, value: float | None) -> None:
        found.gauge(f"trainband_worker_{name}", text, value, task)

    def counter(name: str, text: str, value: float | None) -> None:
        found.counter(f"trainband_worker_{name}", text, value, task)

    gauge("chief", "Whether it is the chief now.", float(one.is_chief))
    gauge("global_step", "Updates of the whole job, as far as it knows.", one.global_step)
    gauge("target_global_step", "Global step at which the training ends, if known.", one.last_step)
    counter("steps_total", "Its steps, including those before it resumed from a checkpoint.", one.steps)
    text = "Time spent in its steps, by part."
    for part, spent in one.seconds.items():
        found.counter("trainband_worker_step_seconds_total", text, spent, task, ("part", part))
    counter("examples_total", "Examples of these steps, in this process.", one.examples)
    counter("refused_gradients_total", "Its gradients refused because they were not finite.", one.refused)
    gauge("loss", "Its latest loss.", one.loss)
    gauge("memory_bytes", "Memory of its process and those that it started.", one.memory_bytes or None)
    for part, nbytes in one.memory_parts.items():
        text = "Parts of that memory."
        found.gauge("trainband_worker_memory_part_bytes", text, nbytes, task, ("part", part))
    limit = one.device_memory_limit_bytes or None
    gauge("device_memory_bytes", "Memory in use on its devices.", one.device_memory_bytes if limit else None)
    gauge("device_memory_limit_bytes", "Memory that it can use on its devices.", limit)
    checkpoint = one.checkpoint
    if checkpoint is not None:
        gauge("checkpoint_global_step", "Global step of the last checkpoint.", checkpoint.global_step)
        gauge("checkpoint_size_bytes", "Its size.", checkpoint.nbytes)
        gauge("checkpoint_duration_seconds", "How long it took.", checkpoint.seconds)
    return found


def job_exposition(statuses: Sequence[PsStatus]) -> str:
    """Returns the metrics of a whole job: those of each ps that answers, and those of the job.

    Each ps has its own view of the workers; only one is exported: that of ps:0, if it answers.

    Args:
      statuses: one of each ps, as close in time as possible. Without any, the job cannot be reached.
    """
    found = Families()
    found.gauge("trainband_job_ps", "Ps that answer.", len(statuses))
    if not statuses:
        return exposition(found)
    first = min(statuses, key=lambda status: (status.task != "ps:0", status.task))
    last = first.last_version
    held = {replica.shard: replica for status in statuses for replica in status.replicas if replica.role == "primary"}
    live = {worker.task for status in statuses for worker in status.workers if worker.presence == "live"}
    stuck = {worker.task for status in statuses for worker in status.workers if worker.stalled_s > 0}
    found.counter("trainband_job_steps_total", "The global step.", first.version)
    target = last if 0 < last < UNLIMITED else None
    found.gauge("trainband_job_target_steps", "Global step at which the training ends, if known.", target)
    found.gauge("trainband_job_ended", "Whether it has ended.", float(first.ended))
    found.gauge("trainband_job_live_workers", "Workers in the job.", len(live))
    found.gauge("trainband_job_stuck_workers", "Live workers that push nothing.", len(stuck))
    found.gauge("trainband_job_held_shards", "Shards held by a ps that answers.", len(held))
    nbytes = sum(variable.nbytes for variable in first.variables)
    found.gauge("trainband_job_variables_bytes", "Bytes of variables, on all ps.", nbytes)
    text = "Recent share of its time spent in a part of its steps."
    for worker in first.workers:
        for part, share in worker.time.items():
            found.gauge("trainband_job_worker_time_ratio", text, share, ("worker", worker.task), ("part", part))
    return exposition([*found, *ps_families(statuses, workers_of=first.task)])
