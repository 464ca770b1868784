"""Lifecycle: the main thread of a ps task, until its job ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainband.errors import CheckpointError, DeadlineExceeded
from trainband.ps.membership.absence import Absence
from trainband.ps.membership.job_end import Elsewhere, Verdict, verdict
from trainband.ps.service.job_membership import JobMembership
from trainband.ps.service.other_ps import OtherPs
from trainband.ps.service.readers import Readers
from trainband.ps.service.reserved_pieces import ReservedPieces
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.service.stall_detector import StallDetector
from trainband.ps.service.status import StatusReporter
from trainband.ps.task_state import TaskState
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.waiting import Waiting
from trainband.wire.messages import calls as m

TICK_S = 0.2
"""Seconds between lease checks."""

DISMISSED_S = 15.0
"""Seconds that a ps asked to end serves remaining workers. It may be killed after 20 s or 30."""


@dataclass(eq=False)
class Lifecycle:
    """Periodic checks for lost or stuck workers and for the end of the job."""

    _task: TaskState
    _membership: JobMembership
    _replicas: ShardReplicas
    _stall_detector: StallDetector
    _reserved_pieces: ReservedPieces
    _status: StatusReporter
    _other_ps: OtherPs
    _readers: Readers
    _absence: Absence = field(init=False)
    _dismissed: bool = field(default=False, init=False)
    _dismissed_at: float | None = field(default=None, init=False)
    _shutdown_reason: str = field(default="", init=False)
    _completed_at: float | None = field(default=None, init=False)
    cut_short: bool = field(default=False, init=False)
    """Whether the task was dismissed before its job ended."""

    def __post_init__(self) -> None:
        self._absence = Absence(self._task.timeouts.lease_s)

    def run(self) -> str:
        """Serves until the job ends; returns the reason as text.

        Raises:
          CheckpointError: values were lost and cannot be restored.
          DeadlineExceeded: every worker was lost before the job was complete, and none returned.
        """
        waiting: Waiting | None = None
        reason = ""
        try:
            while True:
                with self._task.lock:
                    self._membership.expire()
                    self._absence.record_check(
                        self._task.clock(), live=bool(self._membership.members.live()), silent=self._other_ps.are_silent
                    )
                    description = self._replicas.home.description
                    self._stall_detector.handle_stalled(description.stall_s if description is not None else 0.0)
                    self._stall_detector.break_deadlocks()
                    self._reserved_pieces.free()
                    self._status.sample()
                    now = self.verdict()
                    lost = self._membership.lost if self._membership.has_lost_values else ""
                    have_come = any(True for _ in self._membership.members)
                if lost:
                    raise CheckpointError(lost)
                if now.ended:
                    self._task.ended = now.ended
                    return now.ended
                if not now.waiting_for:
                    self._other_ps.forget()
                elif have_come:
                    self._other_ps.ask_one()
                if now.waiting_for:
                    if waiting is None or reason != now.waiting_for:
                        waiting, reason = Waiting(now.timeout_s, self._task.say, self._task.clock), now.waiting_for
                    try:
                        waiting.check(reason, "restart the workers, or check why they ended")
                    except DeadlineExceeded:
                        if self._replicas.are_complete():
                            return "the job is complete"
                        raise
                else:
                    waiting = None
                self._task.wake.wait(TICK_S)
                self._task.wake.clear()
        finally:
            self.stop()
            self._readers.await_all_notified(self._task.timeouts.grace_s)
            self._replicas.close(self._task.timeouts.grace_s)

    def dismiss(self) -> None:
        """Ends `run` when no worker is left, or after `DISMISSED_S`. Safe in a signal handler."""
        self._dismissed = True  # `run` polls it

    def shut_down(self, reason: str) -> None:
        """Ends `run` on request. Called under the lock."""
        self._shutdown_reason = reason or "asked to"
        self._task.wake.set()

    def stop(self) -> None:
        """Ends every stream. Idempotent."""
        with self._task.lock:
            self._task.stopped = True
            self._task.wake.set()

    def verdict(self) -> Verdict:
        """Decides whether the task ends or waits. Called under the lock."""
        if self._shutdown_reason:
            return Verdict(ended=f"shut down: {self._shutdown_reason}")
        if self._task.stopped:
            return Verdict(ended="its server was shut down")
        now = self._task.clock()
        if not self._replicas.are_complete():
            self._completed_at = None
        elif self._completed_at is None:
            self._completed_at = now
        found = verdict(
            list(self._membership.members),
            self._membership.planned,
            self._membership.planned_chief,
            completed_at=self._completed_at,
            unlimited=any(
                replica.training.fit > 0 and replica.training.last_version >= m.UNLIMITED for replica in self._replicas
            ),
            start_s=self._task.timeouts.start_s,
            now=now,
            elsewhere=self._elsewhere(now),
        )
        if not self._dismissed:
            return found
        if not found.ended:
            if self._serves_yet(now):
                return found
            found = Verdict(ended=PREEMPTED)
        self.cut_short = not self._replicas.are_complete()
        return found

    def _elsewhere(self, now: float) -> Elsewhere:
        """Judges the job from other evidence when no worker is left. Called under the lock."""
        absence, lease_s = self._absence, self._task.timeouts.lease_s
        if self._membership.members.live():
            return Elsewhere.UNKNOWN
        if self._other_ps.have_completed():
            return Elsewhere.COMPLETE
        if len(self._task.cluster.spec.ps) == 1:
            over = absence.stood_still
        else:
            over = (absence.stood_still or absence.was_cut_off) and self._other_ps.are_gone(lease_s)
        if not (over and absence.is_deserted(now)):
            return Elsewhere.UNKNOWN
        return Elsewhere.OVER if self._replicas.have_standbys() else Elsewhere.AWAY

    def _serves_yet(self, now: float) -> bool:
        """Whether this dismissed ps still has workers that may need to finish."""
        live = ", ".join(sorted(member.task for member in self._membership.members.live()))
        if self._dismissed_at is None:
            self._dismissed_at = now
            if live:
                self._task.say(
                    f"{self._task.name}: {PREEMPTED}; it serves {live} until they leave, {DISMISSED_S:g} s at most"
                )
        return bool(live) and now - self._dismissed_at < DISMISSED_S
