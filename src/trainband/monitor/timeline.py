"""The timeline: events of a job, derived from the differences of consecutive snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from trainband.monitor.snapshot import JobSnapshot, Severity
from trainband.runtime.formatting import size
from trainband.wire.messages.replication import NOBODY


class Event(Struct, frozen=True):
    """Something that happened."""

    at: float
    """When it was seen, in seconds since 1970."""
    kind: str
    """`joined`, `left`, `lost`, `failed`, `preempted`, `returned`, `stuck`, `moving`, `silent`, `answers`, `restarted`,
    `failover`, `standby_lost`, `standby`, `checkpoint`, `restored`, `began`, `ended`, `unreachable`, `reachable`,
    `chief`; for programs."""
    severity: Severity
    task: str
    """`worker:3`, `ps:0`, or empty for the job."""
    text: str
    """A sentence."""
    step: int = 0
    """The global step then."""


_PRESENCE: dict[str, tuple[str, Severity, str]] = {
    "lost": ("lost", "error", "{} is lost: its process died or is unreachable."),
    "left": ("left", "info", "{} left the job."),
    "failed": ("failed", "error", "{} failed: {}"),
    "preempted": ("preempted", "warning", "{} was asked to end and left."),
}


MOST_AT_ONCE = 10
"""Workers that are listed one by one if the same happens to them within one look. A job of 1,000 workers would
otherwise fill half of the remembered events when it begins, and again when it ends."""
_TOGETHER = {
    "joined": "joined",
    "left": "left the job",
    "lost": "are lost: their processes died or are unreachable",
    "preempted": "were asked to end and left",
    "returned": "are back",
    "stuck": "are alive but push nothing",
    "moving": "push again",
}


def events_between(before: JobSnapshot, after: JobSnapshot) -> tuple[Event, ...]:
    """Returns the events between two snapshots, in causal order: job, ps, shards, workers."""
    return tuple(
        Event(after.at, kind, severity, task, text, after.global_step)
        for of in (_of_job, _of_ps, _of_shards, _of_workers, _of_checkpoint)
        for kind, severity, task, text in of(before, after)
    )


Told = tuple[str, Severity, str, str]


def _of_job(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    if before.state != after.state:
        if after.state == "running" and before.state == "waiting":
            yield "began", "good", "", f"The job answers, at global step {after.global_step:,}."
        elif after.state == "running":
            yield "reachable", "good", "", f"The job answers again, at global step {after.global_step:,}."
        elif after.state == "ended":
            yield "ended", "good", "", f"The job has ended at global step {after.global_step:,}."
        elif after.state == "unreachable":
            yield (
                "unreachable",
                "error",
                "",
                "No ps of the job answers: it has ended, or all have died or are unreachable.",
            )
    if before.state != "waiting" and after.state == "running" and after.initialised:
        if after.global_step < before.global_step:
            text = f"The training went back from global step {before.global_step:,} to {after.global_step:,}."
            yield "restored", "warning", "", text
        if before.chief and after.chief and before.chief != after.chief:
            yield "chief", "info", after.chief, f"{after.chief} is now the chief, after {before.chief}."


def _of_ps(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    if after.state == "ended":
        return  # their silence is expected
    earlier = {view.task: view for view in before.ps}
    for view in after.ps:
        old = earlier.get(view.task)
        if old is None:
            continue
        if old.up and not view.up:
            yield "silent", "error", view.task, f"{view.task} no longer answers."
        elif view.up and old.incarnation and old.incarnation != view.incarnation:
            yield "restarted", "warning", view.task, f"{view.task} was restarted."
        elif view.up and not old.up:
            yield "answers", "good", view.task, f"{view.task} answers."


def _of_shards(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    old, new = _holders(before), _holders(after)
    for shard, (term, primary, standby) in sorted(new.items()):
        if shard not in old:
            continue
        old_term, old_primary, old_standby = old[shard]
        if primary != old_primary and term >= old_term:
            text = f"Shard {shard} moved from ps:{old_primary} to ps:{primary}, in term {term}."
            yield "failover", "warning", f"ps:{primary}", text
        elif standby == NOBODY and old_standby != NOBODY:
            yield "standby_lost", "warning", f"ps:{old_standby}", f"Shard {shard} lost its standby, ps:{old_standby}."
        if standby not in (NOBODY, old_standby):
            yield "standby", "good", f"ps:{standby}", f"ps:{standby} is the standby of shard {shard}."


def _holders(job: JobSnapshot) -> dict[int, tuple[int, int, int]]:
    """Returns by shard the latest term known to any ps, with its primary and standby."""
    held: dict[int, tuple[int, int, int]] = {}
    for view in job.ps:
        for replica in view.replicas:
            if replica.role == "primary" and replica.term >= held.get(replica.shard, (0, 0, 0))[0]:
                held[replica.shard] = (replica.term, int(view.task.partition(":")[2]), replica.standby)
    return held


def _of_workers(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    """Yields one event per worker; if the same happens to many at once, one for all of them."""
    by_kind: dict[str, list[Told]] = {}
    for told in _of_each_worker(before, after):
        by_kind.setdefault(told[0], []).append(told)
    for kind, all_told in by_kind.items():
        if len(all_told) <= MOST_AT_ONCE or kind not in _TOGETHER:
            yield from all_told
            continue
        first = ", ".join(task for _, _, task, _ in all_told[:3])
        text = f"{len(all_told):,} workers {_TOGETHER[kind]}: {first} and {len(all_told) - 3:,} others."
        yield kind, all_told[0][1], "", text


def _of_each_worker(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    earlier = {worker.task: worker for worker in before.workers}
    for worker in after.workers:
        old, name = earlier.get(worker.task), worker.task
        process = (worker.host, worker.pid)
        if old is None:
            if worker.presence == "live":
                yield "joined", "good", name, f"{name} joined."
            continue
        if worker.presence == "live":
            if old.presence != "live" or (old.host, old.pid) != process:
                yield "returned", "good", name, f"{name} is back."
            elif worker.stalled_s and not old.stalled_s:
                yield "stuck", "warning", name, f"{name} is alive but pushes nothing."
            elif old.stalled_s and not worker.stalled_s:
                yield "moving", "good", name, f"{name} pushes again."
        elif old.presence != worker.presence and worker.presence in _PRESENCE:
            kind, severity, text = _PRESENCE[worker.presence]
            yield kind, severity, name, text.format(name, worker.failure or "it gave no reason.")
        if not old.non_finite_losses and worker.non_finite_losses:
            yield "non_finite", "warning", name, f"The loss of {name} was NaN or infinite."


def _of_checkpoint(before: JobSnapshot, after: JobSnapshot) -> Iterator[Told]:
    new = after.checkpoint
    if new is not None and new != before.checkpoint:
        text = f"Checkpoint of global step {new.global_step:,}: {size(new.nbytes)} in {new.seconds:.1f} s."
        yield "checkpoint", "info", "", text
