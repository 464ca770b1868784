"""Accounts: what each worker has done and where each variable lives, as the status shows them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainband.model.placement import Placement
from trainband.ps.membership.members import Member
from trainband.ps.statistics import Rate, SliceStatus, VariableStatus, WorkerStatus
from trainband.runtime.step_times import PARTS
from trainband.wire.messages import NO_MEMORY, Memory

SPENT_BEATS = 4
"""Heartbeats over which a worker's time is divided: some seconds."""

LATELY = 0.05
"""The weight of the newest in a mean of a worker's."""


@dataclass(slots=True)
class Account:
    """What one worker has done."""

    pushes: int = 0
    refused: int = 0
    dropped: int = 0
    examples: int = 0
    loss: float | None = None
    non_finite_losses: int = 0
    first_batch: str = ""
    """A digest of it; empty before."""
    staleness: float = 0.0
    transport: str = ""
    pushed_at: float = float("-inf")
    """When its last push came, or the training began, by the service's clock."""
    usual_s: float = 0.0
    """Between two of its pushes, the mean of late."""
    blocked_by: tuple[str, ...] = ()
    """The workers that it waits for, at any ps."""
    deadlocked_since: float | None = None
    """Since when it has been seen in a deadlock of workers that wait for one another."""
    said_at: float = float("-inf")
    """When people were told that it is stuck."""
    rate: Rate = field(default_factory=Rate)
    spent: deque[tuple[float, tuple[float, ...]]] = field(default_factory=lambda: deque(maxlen=SPENT_BEATS))
    """When its last heartbeats came, and what its steps had spent on each of `step_times.PARTS` by then."""
    device: str = ""
    """What it computes on."""
    memory: Memory = NO_MEMORY
    """What its last heartbeat has said."""

    def note_push(self, now: float, examples: int) -> None:
        """A push of so many examples has come."""
        if self.pushed_at > float("-inf"):
            took_s = now - self.pushed_at
            self.usual_s = self.usual_s + LATELY * (took_s - self.usual_s) if self.usual_s else took_s
        self.pushes += 1
        self.pushed_at = now
        self.examples += examples

    def note_loss(self, loss: float) -> None:
        """Notes the loss of a push whose gradient is finite, which the loss itself need not be."""
        self.loss = loss
        self.non_finite_losses += not math.isfinite(loss)

    def note_update(self, staleness: int) -> None:
        """One of its pushes has become an update."""
        self.staleness += LATELY * (staleness - self.staleness)

    def note_spent(self, now: float, seconds: tuple[float, ...]) -> None:
        """A heartbeat has said what its steps have spent their time on."""
        if len(seconds) == len(PARTS):
            self.spent.append((now, seconds))

    def shares(self) -> dict[str, float]:
        """The share of each part of its steps in its time, lately; empty where it has not said."""
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

        `stalled_s`: for how long it has lived and been stuck; `share`: of the examples of an update.
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
            memory_bytes=self.memory.process,
            device_memory_bytes=self.memory.device,
            device_memory_limit_bytes=self.memory.device_limit,
        )


def variable_statuses(placement: Placement, ps: Sequence[str]) -> tuple[VariableStatus, ...]:
    """Every variable of a plan as a record; `ps` are the names of the ps."""
    return tuple(
        VariableStatus(
            v.name,
            v.shape,
            v.dtype,
            v.nbytes,
            tuple(SliceStatus(ps[piece.ps], piece.start, piece.stop) for piece in placement.of(v)),
        )
        for v in dict.fromkeys(piece.variable for piece in placement.slices)
    )
