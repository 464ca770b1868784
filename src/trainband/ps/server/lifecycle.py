"""Lifecycle: the main thread of a ps task, until its job ends."""

from __future__ import annotations

from trainband.errors import CheckpointError, DeadlineExceeded
from trainband.ps.membership.absence import Absence
from trainband.ps.membership.job_end import Elsewhere, Verdict, verdict
from trainband.ps.membership.stall_detector import StallDetector
from trainband.ps.server.job_membership import JobMembership
from trainband.ps.server.other_ps import OtherPs
from trainband.ps.server.readers import Readers
from trainband.ps.server.reserved_pieces import ReservedPieces
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.status import StatusReporter
from trainband.ps.server.task_state import TaskState
from trainband.runtime.signals import PREEMPTED
from trainband.runtime.waiting import Waiting
from trainband.wire import messages as m

TICK_S = 0.2
"""Between two looks at the leases."""

DISMISSED_S = 15.0
"""How long a ps that was asked to end serves workers that have not left. Whoever asks may kill after 20 s or 30."""


class Lifecycle:
    """Looks now and then at who lives, who is stuck and whether somebody is left to serve.

    Args:
      task: what all parts of this ps share.
      membership: who is in the job.
      replicas: of the ps.
      stall_detector: looks at workers that live and do not get on.
      reserved_pieces: what a checkpoint has reserved for workers.
      status: whose rates are kept fresh.
      other_ps: are asked how the job is where no worker is left.
      readers: hear of the end before it comes.
    """

    def __init__(
        self,
        task: TaskState,
        membership: JobMembership,
        replicas: ShardReplicas,
        stall_detector: StallDetector,
        reserved_pieces: ReservedPieces,
        status: StatusReporter,
        other_ps: OtherPs,
        readers: Readers,
    ) -> None:
        self._task = task
        self._membership = membership
        self._members = membership.members
        self._replicas = replicas
        self._stall_detector = stall_detector
        self._reserved_pieces = reserved_pieces
        self._status = status
        self._other_ps = other_ps
        self._readers = readers
        self._absence = Absence(task.timeouts.lease_s)
        self._dismissed = False
        self._dismissed_at: float | None = None
        self._shutdown_reason = ""
        self._completed_at: float | None = None
        self.cut_short = False
        """Whether the task ended because it was dismissed, and not with its job."""

    def run(self) -> str:
        """Serves until the job ends; returns why it did, in words.

        Raises:
          CheckpointError: values were lost, and no worker can give them back.
          DeadlineExceeded: every worker was lost before the job was complete, and none came back.
        """
        waiting: Waiting | None = None
        reason = ""
        try:
            while True:
                with self._task.lock:
                    self._membership.expire()
                    self._absence.note(
                        self._task.clock(), live=bool(self._members.live()), silent=self._other_ps.are_silent
                    )
                    description = self._replicas.home.model.description
                    self._stall_detector.handle_stalled(description.stall_s if description is not None else 0.0)
                    self._stall_detector.break_deadlocks()
                    self._reserved_pieces.free()
                    self._status.sample()
                    now = self.verdict()
                    lost = self._membership.lost if self._membership.has_lost_values else ""
                    have_come = any(True for _ in self._members)
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
                        waiting.check(reason, "start the workers again, or look at why they ended")
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
            self._readers.await_all_told(self._task.timeouts.grace_s)
            self._replicas.close(self._task.timeouts.grace_s)

    def dismiss(self) -> None:
        """Has `run` end when no worker is left, and in `DISMISSED_S` at the latest. For a signal handler, too."""
        self._dismissed = True  # `run` looks at it now and then

    def shut_down(self, reason: str) -> None:
        """Has `run` end because somebody asks for it. Called under the lock."""
        self._shutdown_reason = reason or "asked to"
        self._task.wake.set()

    def stop(self) -> None:
        """Lets every stream end. Idempotent."""
        with self._task.lock:
            self._task.stopped = True
            self._task.wake.set()

    def verdict(self) -> Verdict:
        """Whether the task ends, or for whom it waits. Called under the lock."""
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
            list(self._members),
            self._membership.planned,
            self._membership.planned_chief,
            completed_at=self._completed_at,
            unlimited=any(
                replica.model.fit > 0 and replica.model.last_version >= m.UNLIMITED for replica in self._replicas
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
        """What is known of the job from outside, where no worker is left. Called under the lock."""
        absence, lease_s = self._absence, self._task.timeouts.lease_s
        if self._members.live():
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
        """Whether, though this ps was dismissed, workers are there that may have something to finish."""
        live = ", ".join(sorted(member.task for member in self._members.live()))
        if self._dismissed_at is None:
            self._dismissed_at = now
            if live:
                self._task.say(
                    f"{self._task.name}: {PREEMPTED}; for {DISMISSED_S:g} s at most it serves {live} until they leave"
                )
        return bool(live) and now - self._dismissed_at < DISMISSED_S
