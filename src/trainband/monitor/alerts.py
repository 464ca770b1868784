"""Alerts: problems of a job that need attention. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trainband.monitor.snapshot import Alert, JobSnapshot, Severity
from trainband.wire.messages.replication import NOBODY

MOST = 50
"""Alerts that a snapshot lists: if all 1,000 workers of a job fail, listing each adds nothing."""


def find_alerts(job: JobSnapshot) -> tuple[Alert, ...]:
    """Returns the problems of a job, errors first, at most `MOST` of them.

    A job that has ended reports failures only.
    """
    found = list(_of_workers(job))
    if job.state in ("running", "unreachable"):
        found += _of_ps(job)
    found.sort(key=lambda alert: alert.severity != "error")  # the sort is stable
    if len(found) > MOST:
        rest = Alert("more", "warning", "", f"{len(found) - MOST:,} further alerts are not listed.")
        found = [*found[:MOST], rest]
    return tuple(found)


def _of_workers(job: JobSnapshot) -> Iterator[Alert]:
    for worker in job.workers:
        if worker.failure:
            severity: Severity = "error" if worker.presence == "failed" else "warning"
            yield Alert("failed", severity, worker.task, f"{worker.task} failed: {worker.failure}")
        elif worker.presence == "lost" and job.state == "running":
            yield Alert(
                "lost", "warning", worker.task, f"{worker.task} has not been heard from for {worker.heard_s:,.0f} s."
            )
        if worker.stalled_s and job.state == "running":
            waits = "others wait for it" if worker.task in job.waiting_for else "nothing waits for it"
            text = f"{worker.task} is alive but has pushed nothing for {worker.stalled_s:,.0f} s; {waits}."
            yield Alert("stuck", "error" if worker.task in job.waiting_for else "warning", worker.task, text)
        if worker.non_finite_losses:
            text = f"The loss of {worker.task} was NaN or infinite {worker.non_finite_losses:,} times."
            yield Alert("non_finite", "warning", worker.task, text)
        if worker.refused:
            text = f"{worker.refused:,} gradients of {worker.task} were not finite and were refused."
            yield Alert("non_finite", "warning", worker.task, text)


def _of_ps(job: JobSnapshot) -> Iterator[Alert]:
    for view in job.ps:
        if not view.up:
            text = f"{view.task} at {view.address} has not answered for {job.at - view.since:,.0f} s."
            yield Alert("silent_ps", "error", view.task, text)
    if not job.initialised:
        return
    held = {
        replica.shard: replica for view in job.ps if view.up for replica in view.replicas if replica.role == "primary"
    }
    if any(replica.term > 0 for replica in held.values()):
        for shard in range(len(job.ps)):
            if shard not in held and any(view.up for view in job.ps):
                yield Alert("no_primary", "error", "", f"No ps that answers holds shard {shard}.")
    # A job with standbys=0 has no standbys at all; one that has lost some has a later term than the first, or others.
    replicated = any(replica.standby != NOBODY or replica.term > 1 for replica in held.values())
    for shard, replica in sorted(held.items()):
        if replicated and replica.standby == NOBODY:
            text = f"Shard {shard} has no standby: if ps:{replica.primary} dies, its values are lost."
            yield Alert("no_standby", "warning", f"ps:{replica.primary}", text)
