"""Ending: when a ps has nobody to serve any more. A pure function of who was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainband.ps.membership.members import Member, Presence
from trainband.wire.fields import GUESTS

LINGER_S = 30.0
"""How long a finished job waits for workers of the cluster that have never come, and for one that died shortly before
its end: one that starts slowly, or again, should find the job finished, not gone."""


class Elsewhere(Enum):
    """What a ps that has lost all its workers knows of the job from outside."""

    UNKNOWN = "unknown"
    COMPLETE = "complete"
    """Other ps have what this one lacks, and say that the job is complete and all workers have left."""
    OVER = "over"
    """This ps was away, and no task of the job has been there for a lease since; other ps could go on without it."""
    AWAY = "away"
    """The same, but no other ps could go on without this one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ps has to do.

    Attributes:
      ended: why the job has ended; empty while it has not.
      waiting_for: whom the ps waits for, with nobody at work; empty where somebody is.
      timeout_s: for how long; `None` without end.
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
      members: the newest of each task that has come.
      planned: the workers of the cluster.
      chief: that one of them which is its chief.
      completed_at: when it was seen that all updates that were asked for are made; `None` while they are not.
      unlimited: whether no number of updates was asked for.
      start_s: how long somebody who was lost may take to come back when nobody is left.
      now: on the clock of `completed_at` and of the members.
      elsewhere: what is known of the job from outside of this ps.
    """
    if not members:
        return Verdict(waiting_for="the first worker to join")
    if any(member.live for member in members):
        return Verdict()
    came = {member.task for member in members}
    missing = [task for task in planned if task not in came]
    if completed_at is not None:
        lost = [one for one in members if one.presence is Presence.LOST and one.number < GUESTS]
        late = missing + [
            one.task
            for one in (lost if elsewhere is Elsewhere.UNKNOWN else ())  # else they have left, and could not say so
            # The chief, if it comes back, has a last checkpoint to save; whoever else saw the end has nothing to do.
            if one.task == chief or (one.heard_at < completed_at and now - one.heard_at < LINGER_S)
        ]
        if late:
            return Verdict(waiting_for=f"{', '.join(late)} to look in at the end of the job", timeout_s=LINGER_S)
        return Verdict(ended="the job is complete")
    if elsewhere is Elsewhere.COMPLETE:
        return Verdict(ended="the job is complete")
    gone = [one.task for one in members if one.presence is not Presence.LEFT and one.number < GUESTS]
    last = max(members, key=lambda one: one.heard_at)
    asked = {one.task for one in members if one.presence is Presence.PREEMPTED}
    # Who was asked to end may come back, unless others have brought the job to its end meanwhile.
    if not missing and (not gone or (asked.issuperset(gone) and last.presence is Presence.LEFT)):
        return Verdict(ended="every worker has left")
    if elsewhere is Elsewhere.OVER:
        return Verdict(ended="the job has ended while this ps was cut off or stopped")
    if unlimited and any(one.task == chief and one.presence is Presence.LEFT for one in members):
        return Verdict(ended=f"{chief} has ended the training, and nobody else is at work")
    return Verdict(
        waiting_for=f"a worker to come back, now that nobody is left ({', '.join(gone + missing)})", timeout_s=start_s
    )
