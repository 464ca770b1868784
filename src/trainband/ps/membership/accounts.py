"""Accounts: the work of each worker and the place of each variable, as the status shows them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainband.job.statistics import Rate, SliceStatus, VariableStatus, WorkerStatus
from trainband.model.placement import Placement
from trainband.ps.membership.members import Member
from trainband.runtime.memory import PARTS as PARTS_OF_MEMORY
from trainband.runtime.step_times import PARTS
from trainband.wire.messages.calls import NO_MEMORY, Memory

SPENT_BEATS = 4
"""Heartbeats over which a worker's time is broken down: a few seconds."""

LATELY = 0.05
"""Weight of the newest value in a worker's running means."""


@dataclass(slots=True)
class Account:
    """The account of one worker."""

    pushes: int = 0
    refused: int = 0
    dropped: int = 0
    examples: int = 0
    loss: float | None = None
    non_finite_losses: int = 0
    first_batch: str = ""
    """Its digest; empty before."""
    staleness: float = 0.0
    transport: str = ""
    pushed_at: float = float("-inf")
    """When its last push came or the training began, by the service's clock."""
    usual_s: float = 0.0
    """Recent mean of the seconds between its pushes."""
    blocked_by: tuple[str, ...] = ()
    """The workers that it is waiting for, at any ps."""
    deadlocked_since: float | None = None
    """When it was first seen in its present deadlock with other workers."""
    said_at: float = float("-inf")
    """When it was last reported as stuck."""
    rate: Rate = field(default_factory=Rate)
    spent: deque[tuple[float, tuple[float, ...]]] = field(default_factory=lambda: deque(maxlen=SPENT_BEATS))
    """When its last heartbeats came, and the seconds its steps had spent on each of `step_times.PARTS`."""
    device: str = ""
    """The device it computes on."""
    version: str = ""
    """The version of trainband, as from `version.build`."""
    memory: Memory = NO_MEMORY
    """As of its last heartbeat."""

    def record_push(self, now: float, examples: int) -> None:
        """Records a push of this many examples."""
        if self.pushed_at > float("-inf"):
            took_s = now - self.pushed_at
            self.usual_s = self.usual_s + LATELY * (took_s - self.usual_s) if self.usual_s else took_s
        self.pushes += 1
        self.pushed_at = now
        self.examples += examples

    def record_loss(self, loss: float) -> None:
        """Records the loss of a push with a finite gradient; the loss need not be finite."""
        self.loss = loss
        self.non_finite_losses += not math.isfinite(loss)

    def record_update(self, staleness: int) -> None:
        """Records that one of its pushes is in an update."""
        self.staleness += LATELY * (staleness - self.staleness)

    def record_spent(self, now: float, seconds: tuple[float, ...]) -> None:
        """Records the time that its steps have spent, from a heartbeat."""
        if len(seconds) == len(PARTS):
            self.spent.append((now, seconds))

    def shares(self) -> dict[str, float]:
        """The recent share of each part of its steps in its time; empty if unknown."""
        if len(self.spent) < 2:
            return {}
        (began, before), (now, after) = self.spent[0], self.spent[-1]
        passed_s = now - began
        if passed_s <= 0:
            return {}
        spent = [max(0.0, new - old) for old, new in zip(before, after, strict=True)]
        shares = {part: min(1.0, seconds / passed_s) for part, seconds in zip(PARTS, spent, strict=True)}
        return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}

    def status(self, member: Member, now: float, stalled_s: float = 0.0, share: float = 0.0) -> WorkerStatus:
        """The account of `member` as a record.

        `stalled_s`: how long it has been alive but stuck; `share`: of the examples of an update.
        """
        return WorkerStatus(
            task=member.task,
            presence=member.presence.value,
            host=member.host,
            pid=member.pid,
            transport=self.transport,
            pushes=self.pushes,
            refused=self.refused,
            dropped=self.dropped,
            rate=self.rate.at(now, self.pushes),
            staleness=self.staleness,
            loss=self.loss,
            examples=self.examples,
            heard_s=now - member.heard_at,
            failure=member.failure,
            stalled_s=stalled_s,
            non_finite_losses=self.non_finite_losses,
            share=share,
            time=self.shares(),
            device=self.device,
            version=self.version,
            memory_bytes=self.memory.process,
            memory_parts=dict(zip(PARTS_OF_MEMORY, self.memory.parts, strict=False)),
            device_memory_bytes=self.memory.device,
            device_memory_limit_bytes=self.memory.device_limit,
        )


def variable_statuses(placement: Placement, ps: Sequence[str]) -> tuple[VariableStatus, ...]:
    """Every variable of a placement as a record; `ps` are the names of the ps."""
    return tuple(
        VariableStatus(
            v.name,
            v.shape,
            v.dtype,
            v.nbytes,
            tuple(SliceStatus(ps[piece.ps], piece.start, piece.stop) for piece in pieces),
        )
        for v, pieces in placement.by_variable().items()
    )
