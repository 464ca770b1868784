"""Assembles a `JobSnapshot` from the answers of a job's ps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainband.job.statistics import PsStatus
from trainband.monitor.alerts import find_alerts
from trainband.monitor.snapshot import JobSnapshot, PsView, ShardReplica, State
from trainband.ps.rules.registry import describe_rule
from trainband.wire.messages.calls import UNLIMITED
from trainband.wire.messages.replication import NOBODY

SLOW_S = 1.0
"""Seconds of slack when the step of a silent job is extrapolated from its last rate."""


class Answer(Struct, frozen=True):
    """The result of asking one ps."""

    address: str
    status: PsStatus | None = None
    """`None` if it did not answer."""
    reason: str = ""
    """Why it did not."""
    at: float = 0.0
    """When it answered, in seconds since 1970."""


def assemble(before: JobSnapshot, answers: Mapping[int, Answer], at: float) -> JobSnapshot:
    """Returns the current state of the job.

    Args:
      before: the snapshot before this one; the first has the source and nothing else.
      answers: of each known ps, by its number.
      at: now, in seconds since 1970.
    """
    views = tuple(_view(before, number, answers[number], at) for number in sorted(answers))
    statuses = {number: answer.status for number, answer in answers.items() if answer.status is not None}
    if not statuses:
        return _unanswered(before, answers, views, at)
    number = holder_of_global_step(statuses)
    told = statuses[number]
    version = next((one.version for one in told.replicas if one.shard == 0 and one.role == "primary"), told.version)
    if not told.initialised and before.initialised and told.incarnation in _incarnations(before):
        version = max(version, before.global_step)  # it has stepped down, and its successor has not answered yet
    last = told.last_version if 0 < told.last_version < UNLIMITED else None
    ended = all(status.ended for status in statuses.values())
    after = JobSnapshot(
        at=at,
        source=before.source,
        state="ended" if ended else "running",
        heard_at=at,
        heard_rate=told.rate,
        global_step=version,
        last_step=last,
        rate=told.rate,
        examples_rate=told.examples_rate,
        examples_applied=told.examples_applied,
        examples_dropped=told.examples_dropped,
        left_s=max(0, last - version) / told.rate if last is not None and told.rate > 0 else None,
        loss=told.loss,
        learning_rate=told.learning_rate,
        staleness_median=told.staleness_median,
        staleness_p99=told.staleness_p99,
        staleness_max=told.staleness_max,
        bytes_in=sum(view.bytes_in for view in views),
        bytes_out=sum(view.bytes_out for view in views),
        bytes_saved=sum(view.bytes_saved for view in views),
        bytes_in_rate=sum(view.bytes_in_rate for view in views),
        bytes_out_rate=sum(view.bytes_out_rate for view in views),
        rule=told.rule,
        rule_text=describe_rule(told.rule) if told.rule else "",
        chief=told.chief,
        waiting_for=told.waiting_for,
        workers=told.workers,
        ps=views,
        variables=told.variables or before.variables,
        checkpoint=told.checkpoint or (before.checkpoint if told.incarnation in _incarnations(before) else None),
        initialised=told.initialised,
    )
    return _finished(before, after)


def holder_of_global_step(statuses: Mapping[int, PsStatus]) -> int:
    """Returns the number of the ps that holds shard 0, whose version is the global step; else of the furthest one."""

    def standing(number: int) -> tuple[bool, bool, int, int]:
        status = statuses[number]
        holds = any(one.shard == 0 and one.role == "primary" for one in status.replicas)
        return holds, status.initialised, status.version, -number

    return max(statuses, key=standing)


def _unanswered(before: JobSnapshot, answers: Mapping[int, Answer], views: Sequence[PsView], at: float) -> JobSnapshot:
    reasons = [answer.reason for _, answer in sorted(answers.items()) if answer.reason]
    silent_s = at - before.heard_at
    state: State
    if before.state in ("waiting", "ended"):
        state = before.state
    elif before.last_step and _reached(before, silent_s) >= before.last_step:
        state = "ended"
    else:
        state = "unreachable"
    after = replace(
        before,
        at=at,
        state=state,
        reason=reasons[0] if reasons else "",
        rate=0.0,
        examples_rate=0.0,
        bytes_in_rate=0.0,
        bytes_out_rate=0.0,
        left_s=None,
        ps=tuple(views),
        waiting_for=(),
    )
    return _finished(before, after)


def _reached(before: JobSnapshot, silent_s: float) -> float:
    """Extrapolates the global step of a job last heard from `silent_s` seconds ago."""
    return before.global_step + before.heard_rate * max(0.0, silent_s - SLOW_S)


def _finished(before: JobSnapshot, after: JobSnapshot) -> JobSnapshot:
    since = before.since if before.state == after.state and before.since else after.at
    return replace(after, since=since, alerts=find_alerts(after))


def _incarnations(snapshot: JobSnapshot) -> set[str]:
    return {view.incarnation for view in snapshot.ps}


def _view(before: JobSnapshot, number: int, answer: Answer, at: float) -> PsView:
    name = f"ps:{number}"
    earlier = next((view for view in before.ps if view.task == name), None)
    status = answer.status
    if status is None:
        if earlier is None:
            return PsView(name, answer.address, up=False, since=at, reason=answer.reason)
        since = at if earlier.up else earlier.since
        return replace(
            earlier, up=False, since=since, reason=answer.reason, rate=0.0, bytes_in_rate=0.0, bytes_out_rate=0.0
        )
    same = earlier is not None and earlier.up and earlier.incarnation == status.incarnation

    def speed(new: float, old: float, known: float) -> float:
        if earlier is None or not same:
            return 0.0
        span = answer.at - earlier.heard_at
        return max(0, new - old) / span if span > 0 else known

    return PsView(
        task=name,
        address=answer.address,
        up=True,
        since=earlier.since if same and earlier is not None else at,
        heard_at=answer.at,
        incarnation=status.incarnation,
        uptime_s=status.uptime_s,
        rate=status.rate,
        version=status.version,
        bytes_in=status.bytes_in,
        bytes_out=status.bytes_out,
        bytes_saved=status.bytes_saved,
        bytes_in_rate=speed(status.bytes_in, earlier.bytes_in, earlier.bytes_in_rate) if earlier else 0.0,
        bytes_out_rate=speed(status.bytes_out, earlier.bytes_out, earlier.bytes_out_rate) if earlier else 0.0,
        shard_bytes=status.shard_bytes,
        memory_bytes=status.memory_bytes,
        memory_parts=status.memory_parts,
        update_s=status.update_s,
        update_share=min(1.0, speed(status.update_s, earlier.update_s, earlier.update_share)) if earlier else 0.0,
        staleness_median=status.staleness_median,
        staleness_p99=status.staleness_p99,
        staleness_max=status.staleness_max,
        replicas=tuple(
            ShardReplica(
                shard=one.shard,
                role=one.role,
                term=one.term.number,
                primary=one.term.primary if one.term.number else (number if one.role == "primary" else NOBODY),
                standby=one.term.standby,
                version=one.version,
                behind=one.behind,
                transport=one.transport,
            )
            for one in status.replicas
        ),
    )
