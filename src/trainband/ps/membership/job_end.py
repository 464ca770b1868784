"""The end of a job: when a ps has no workers left to serve. A pure function of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainband.ps.membership.members import Member, Presence
from trainband.wire.messages.fields import ELASTIC_BASE

LINGER_S = 30.0
"""Seconds that a finished job waits for workers of the cluster that never joined or died shortly before its end: one
that starts slowly, or again, should find the job finished, not gone."""


class Elsewhere(Enum):
    """The state of the job as others report it to a ps that has lost all its workers."""

    UNKNOWN = "unknown"
    COMPLETE = "complete"
    """Other ps have what this one lacks and report that the job is complete and all workers have left."""
    OVER = "over"
    """This ps was away, and no task has been present for a lease since; other ps could continue without it."""
    AWAY = "away"
    """The same, but no other ps could continue without this one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a ps ends or waits.

    Attributes:
      ended: why the job has ended; empty while it has not.
      waiting_for: what the ps waits for without workers; empty while there are any.
      timeout_s: for how long; `None` for no limit.
    """

    ended: str = ""
    waiting_for: str = ""
    timeout_s: float | None = None


def verdict(
    members: Sequence[Member],
    planned: Sequence[str],
    chief: str,
    *,
    completed_at: float | None,
    unlimited: bool,
    start_s: float,
    now: float,
    elsewhere: Elsewhere = Elsewhere.UNKNOWN,
) -> Verdict:
    """Whether a job has ended.

    Args:
      members: the newest of each task that has joined.
      chief: the task that is the chief.
      completed_at: when all updates that were asked for were seen to be made; `None` before.
      unlimited: whether no number of updates was asked for.
      start_s: how long a lost worker may take to come back when none is left.
      now: on the clock of `completed_at` and of the members.
      elsewhere: the state of the job outside this ps.
    """
    if not members:
        return Verdict(waiting_for="the first worker to join")
    if any(member.live for member in members):
        return Verdict()
    came = {member.task for member in members}
    missing = [task for task in planned if task not in came]
    if completed_at is not None:
        lost = [one for one in members if one.presence is Presence.LOST and one.number < ELASTIC_BASE]
        late = missing + [
            one.task
            for one in (lost if elsewhere is Elsewhere.UNKNOWN else ())  # else they left and could not report it
            # A chief that comes back has a last checkpoint to save; other workers that saw the end have nothing to do.
            if one.task == chief or (one.heard_at < completed_at and now - one.heard_at < LINGER_S)
        ]
        if late:
            return Verdict(waiting_for=f"{', '.join(late)} to check in at the end of the job", timeout_s=LINGER_S)
        return Verdict(ended="the job is complete")
    if elsewhere is Elsewhere.COMPLETE:
        return Verdict(ended="the job is complete")
    gone = [one.task for one in members if one.presence is not Presence.LEFT and one.number < ELASTIC_BASE]
    last = max(members, key=lambda one: one.heard_at)
    asked = {one.task for one in members if one.presence is Presence.PREEMPTED}
    # Preempted workers may come back, unless others have finished the job meanwhile.
    if not missing and (not gone or (asked.issuperset(gone) and last.presence is Presence.LEFT)):
        return Verdict(ended="every worker has left")
    if elsewhere is Elsewhere.OVER:
        return Verdict(ended="the job ended while this ps was cut off or stopped")
    if unlimited and any(one.task == chief and one.presence is Presence.LEFT for one in members):
        return Verdict(ended=f"{chief} has ended the training, and no other worker is left")
    return Verdict(
        waiting_for=f"a worker to come back, as none is left ({', '.join(gone + missing)})", timeout_s=start_s
    )
