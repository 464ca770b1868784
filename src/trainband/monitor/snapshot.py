"""JobSnapshot: what a viewer knows of a job at one moment."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import VariableStatus, WorkerStatus

State = Literal["waiting", "running", "ended", "unreachable"]
"""State of a job: no answer yet; it answers; it has ended; it answered once but does not now."""

Severity = Literal["info", "good", "warning", "error"]


class Alert(Struct, frozen=True):
    """A problem that needs attention."""

    kind: str
    """`stuck`, `failed`, `lost`, `non_finite`, `silent_ps`, `no_standby`, `no_primary`; for programs."""
    severity: Severity
    task: str
    """`worker:3`, `ps:0`, or empty for the job."""
    text: str
    """A sentence."""


class ShardReplica(Struct, frozen=True):
    """One replica of a shard, on the ps that holds or follows it."""

    shard: int
    role: str
    """`primary`, `standby`, `learner` or `empty`."""
    term: int
    primary: int
    """Number of the ps that holds the shard; -1 for none."""
    standby: int
    """Number of the ps that follows; -1 for none."""
    version: int
    behind: int
    """Records that the standby has not confirmed."""
    transport: str


class PsView(Struct, frozen=True):
    """A parameter server. A silent one keeps its last values."""

    task: str
    address: str
    up: bool
    since: float
    """When it began to answer, or fell silent; in seconds since 1970."""
    heard_at: float = 0.0
    """When it last answered; 0 for never."""
    reason: str = ""
    """Why it does not answer."""
    incarnation: str = ""
    uptime_s: float = 0.0
    rate: float = 0.0
    version: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_saved: int = 0
    bytes_in_rate: float = 0.0
    """Bytes per second, between the last two looks."""
    bytes_out_rate: float = 0.0
    shard_bytes: int = 0
    memory_bytes: int = 0
    """Of its process and those that it started; 0 if unknown on its platform."""
    memory_parts: dict[str, int] = {}
    """Its parts in bytes, by `runtime.memory.PARTS`; empty if unknown."""
    update_s: float = 0.0
    """Seconds spent on updates."""
    update_share: float = 0.0
    """Share of the time between the last two looks spent on updates."""
    staleness_median: float = 0.0
    staleness_p99: float = 0.0
    staleness_max: int = 0
    replicas: tuple[ShardReplica, ...] = ()


class JobSnapshot(Struct, frozen=True):
    """A job at one moment."""

    at: float
    """Seconds since 1970."""
    source: str
    """The address asked, or the directory read."""
    state: State = "waiting"
    since: float = 0.0
    """When this state began."""
    reason: str = ""
    """Why it is waiting or unreachable."""
    heard_at: float = 0.0
    """When a ps last answered; 0 for never."""
    heard_rate: float = 0.0
    """Global steps per second then."""
    global_step: int = 0
    last_step: int | None = None
    """Global step at which the training ends; `None` if unknown."""
    rate: float = 0.0
    """Recent global steps per second."""
    examples_rate: float = 0.0
    examples_applied: int = 0
    examples_dropped: int = 0
    left_s: float | None = None
    """Seconds until the last step at this rate."""
    loss: float | None = None
    learning_rate: float | None = None
    """`None` unless the optimizer's state has it."""
    staleness_median: float = 0.0
    staleness_p99: float = 0.0
    staleness_max: int = 0
    bytes_in: int = 0
    """Bytes received by all ps together."""
    bytes_out: int = 0
    bytes_saved: int = 0
    bytes_in_rate: float = 0.0
    bytes_out_rate: float = 0.0
    rule: dict[str, str | int | float | bool | None] = {}
    rule_text: str = ""
    chief: str = ""
    waiting_for: tuple[str, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    ps: tuple[PsView, ...] = ()
    variables: tuple[VariableStatus, ...] = ()
    checkpoint: CheckpointStatus | None = None
    alerts: tuple[Alert, ...] = ()
    initialised: bool = False
    """Whether the ps hold values."""
    metrics: dict[str, float] = {}
    """Newest values by name, for a job followed through its history."""

    @property
    def is_starting(self) -> bool:
        """Whether no worker has pushed yet: they are compiling their first step."""
        return self.state == "running" and bool(self.ps) and not any(worker.pushes for worker in self.workers)

    @property
    def live_workers(self) -> int:
        """Number of workers in the job now."""
        return sum(worker.presence == "live" for worker in self.workers)
