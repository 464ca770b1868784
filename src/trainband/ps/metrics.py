"""A ps's metrics for Prometheus, of itself and of its workers: its status as families of samples.

Rates are left to the reader, as is the custom: `rate(trainband_ps_updates_total[1m])`. Labels name only tasks and
shards, so there are a few dozen samples for each ps, and about ten for each worker at each ps. No label holds text
that changes, such as why a worker has failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainband.job.statistics import PsStatus, WorkerStatus
from trainband.runtime.exposition import Families
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.messages.replication import NOBODY, ReplicaState

_MEMORY = "Memory of its process and those that it started; what they share with others is divided."
_PARTS = "Parts of that memory."


def ps_families(statuses: Iterable[PsStatus], *, workers_of: str | None = None) -> Families:
    """The statuses of one or several ps; each sample's label `task` names its ps.

    Args:
      workers_of: the one ps whose view of the workers is included; `None` for that of each.
    """
    families = Families()
    for status in statuses:
        _add_ps(families, status)
        for replica in status.replicas:
            _add_replica(families, status, replica)
        for worker in status.workers if workers_of in (None, status.task) else ():
            _add_worker(families, status, worker)
    return families


def _add_tables(families: Families, status: PsStatus) -> None:
    task, counter, gauge = ("task", status.task), families.counter, families.gauge
    for table in status.tables:
        which = "table", table.name
        gauge("trainband_ps_table_rows", "Rows of a table that it holds.", table.rows, task, which)
        gauge("trainband_ps_table_bytes", "Memory of these rows, with their state.", table.nbytes, task, which)
        counter("trainband_ps_table_hits_total", "Ids looked up that had a row.", table.hits, task, which)
        counter("trainband_ps_table_misses_total", "Ids looked up that had none.", table.misses, task, which)
        counter("trainband_ps_table_admitted_total", "Rows made by training.", table.admitted, task, which)
        counter("trainband_ps_table_refused_total", "Updates of ids that got no row.", table.refused, task, which)
        counter("trainband_ps_table_evicted_total", "Rows removed.", table.evicted, task, which)


def _add_ps(families: Families, status: PsStatus) -> None:
    task = ("task", status.task)
    counter, gauge = families.counter, families.gauge
    rule = str(status.rule.get("name", ""))
    info = ("address", status.address), ("rule", rule), ("chief", status.chief)
    gauge("trainband_ps_info", "Where a ps listens, its update rule and the chief; always 1.", 1.0, task, *info)
    gauge("trainband_ps_uptime_seconds", "How long it has run.", status.uptime_s, task)
    gauge("trainband_ps_initialised", "Whether it has values.", float(status.initialised), task)
    gauge("trainband_ps_ended", "Whether its job has ended.", float(status.ended), task)
    counter("trainband_ps_updates_total", "Updates of its shard; of ps:0, the global step.", status.version, task)
    limited = 0 < status.last_version < UNLIMITED
    target = float(status.last_version) if limited else None
    gauge("trainband_ps_target_updates", "Updates at which the training ends, if known.", target, task)
    text = "Examples whose gradients are in the updates."
    counter("trainband_ps_examples_applied_total", text, status.examples_applied, task)
    text = "Examples whose gradients came too late, or beyond the updates that were asked for."
    counter("trainband_ps_examples_dropped_total", text, status.examples_dropped, task)
    counter("trainband_ps_received_bytes_total", "Gradients received.", status.bytes_in, task)
    counter("trainband_ps_sent_bytes_total", "Params sent to workers.", status.bytes_out, task)
    text = "Bytes saved by gradients and params sent in a narrower dtype."
    counter("trainband_ps_saved_bytes_total", text, status.bytes_saved, task)
    counter("trainband_ps_update_seconds_total", "Time spent on updates of its shard.", status.update_s, task)
    gauge("trainband_ps_shard_bytes", "Size of the variables that it holds.", status.shard_bytes, task)
    gauge("trainband_ps_resident_memory_bytes", _MEMORY, status.memory_bytes or None, task)
    for part, nbytes in status.memory_parts.items():
        gauge("trainband_ps_memory_part_bytes", _PARTS, nbytes, task, ("part", part))
    gauge("trainband_ps_threads", "Threads of its process.", status.threads or None, task)
    gauge("trainband_ps_open_descriptors", "Open descriptors of its process.", status.descriptors or None, task)
    _add_tables(families, status)
    gauge("trainband_ps_variables", "Variables of the model, on all ps.", len(status.variables), task)
    gauge("trainband_ps_loss", "Mean of the latest losses of all workers.", status.loss, task)
    text = "Learning rate of the last update, if the optimizer's state has it."
    gauge("trainband_ps_learning_rate", text, status.learning_rate, task)
    text = "Staleness of the updates so far, in updates."
    for statistic, value in (
        ("median", status.staleness_median),
        ("p99", status.staleness_p99),
        ("max", float(status.staleness_max)),
    ):
        gauge("trainband_ps_staleness_updates", text, value, task, ("statistic", statistic))
    text = "Workers that an update is waiting for."
    gauge("trainband_ps_awaited_workers", text, len(status.waiting_for), task)
    counts = {"live": 0, **{worker.presence: 0 for worker in status.workers}}
    for worker in status.workers:
        counts[worker.presence] += 1
    for presence, count in counts.items():
        text = "Workers by presence."
        gauge("trainband_ps_workers", text, count, task, ("presence", presence))
    checkpoint = status.checkpoint
    if checkpoint is not None:
        text = "Global step of the last checkpoint."
        gauge("trainband_ps_checkpoint_global_step", text, checkpoint.global_step, task)
        gauge("trainband_ps_checkpoint_size_bytes", "Its size.", checkpoint.nbytes, task)
        gauge("trainband_ps_checkpoint_duration_seconds", "How long it took.", checkpoint.seconds, task)


def _add_replica(families: Families, status: PsStatus, replica: ReplicaState) -> None:
    labels = ("task", status.task), ("shard", str(replica.shard))
    gauge = families.gauge
    text = "Role of this ps for a shard: 1 for the role that it has."
    for role in ("empty", "learner", "standby", "primary"):
        gauge("trainband_ps_replica_role", text, float(replica.role == role), *labels, ("role", role))
    gauge("trainband_ps_replica_term", "The shard's term, as this ps knows it.", replica.term.number, *labels)
    gauge("trainband_ps_replica_updates", "The version of this replica of the shard.", replica.version, *labels)
    if replica.role == "primary":
        text = "Whether the shard held here has a standby on another ps."
        gauge("trainband_ps_replica_has_standby", text, float(replica.term.standby != NOBODY), *labels)
        gauge("trainband_ps_replica_lag_records", "Records not yet confirmed by the standby.", replica.behind, *labels)


def _add_worker(families: Families, status: PsStatus, worker: WorkerStatus) -> None:
    labels = ("task", status.task), ("worker", worker.task)
    counter, gauge = families.counter, families.gauge
    process = ("host", worker.host), ("pid", str(worker.pid)), ("transport", worker.transport)
    info = *process, ("device", worker.device)
    gauge("trainband_ps_worker_info", "Where a worker runs and computes; always 1.", 1.0, *labels, *info)
    gauge("trainband_ps_worker_live", "Whether it is in the job.", float(worker.presence == "live"), *labels)
    gauge("trainband_ps_worker_failed", "Whether it has left with an error.", float(bool(worker.failure)), *labels)
    counter("trainband_ps_worker_pushes_total", "Gradients that it has pushed.", worker.pushes, *labels)
    counter("trainband_ps_worker_examples_total", "Examples that they were computed from.", worker.examples, *labels)
    text = "Gradients refused because they were not finite."
    counter("trainband_ps_worker_refused_pushes_total", text, worker.refused, *labels)
    counter("trainband_ps_worker_dropped_pushes_total", "Gradients that came too late.", worker.dropped, *labels)
    text = "Losses that were NaN or infinite."
    counter("trainband_ps_worker_nonfinite_losses_total", text, worker.non_finite_losses, *labels)
    text = "Recent mean staleness of its updates, in updates."
    gauge("trainband_ps_worker_staleness_updates", text, worker.staleness, *labels)
    gauge("trainband_ps_worker_loss", "Its latest loss.", worker.loss, *labels)
    gauge("trainband_ps_worker_silence_seconds", "Time since its last heartbeat.", worker.heard_s, *labels)
    text = "How long it has pushed nothing while others wait for it; 0 if it is not stuck."
    gauge("trainband_ps_worker_stalled_seconds", text, worker.stalled_s, *labels)
    gauge("trainband_ps_worker_resident_memory_bytes", _MEMORY, worker.memory_bytes or None, *labels)
    for part, nbytes in worker.memory_parts.items():
        gauge("trainband_ps_worker_memory_part_bytes", _PARTS, nbytes, *labels, ("part", part))
    used, limit = worker.device_memory_bytes, worker.device_memory_limit_bytes
    gauge("trainband_ps_worker_device_memory_bytes", "Memory in use on its devices.", used if limit else None, *labels)
    text = "Memory of its devices that it may use."
    gauge("trainband_ps_worker_device_memory_limit_bytes", text, limit or None, *labels)
