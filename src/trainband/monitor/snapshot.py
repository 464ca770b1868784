"""JobSnapshot: what a viewer knows of a job at one moment."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from trainband.ps.statistics import CheckpointStatus, VariableStatus, WorkerStatus

State = Literal["waiting", "running", "ended", "unreachable"]
"""Of a job: nobody has answered yet; it answers; it has ended; it answered once and does not now."""

Severity = Literal["info", "good", "warning", "error"]


class Alert(Struct, frozen=True):
    """Something that somebody should look at."""

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
    """A parameter server. What is said of one that is silent is what it said last."""

    task: str
    address: str
    up: bool
    since: float
    """When it began to answer, or to be silent; in seconds since 1970."""
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
    """Resident memory of its process; 0 where its platform doesn't say."""
    update_s: float = 0.0
    """Seconds that updates have taken."""
    update_share: float = 0.0
    """Of the time between the last two looks, that updates took."""
    staleness_median: float = 0.0
    staleness_p99: float = 0.0
    staleness_max: int = 0
    replicas: tuple[ShardReplica, ...] = ()


class JobSnapshot(Struct, frozen=True):
    """A job at one moment."""

    at: float
    """In seconds since 1970."""
    source: str
    """The address that was asked, or the directory that was read."""
    state: State = "waiting"
    since: float = 0.0
    """When that state began."""
    reason: str = ""
    """Why it is waiting or unreachable."""
    heard_at: float = 0.0
    """When a ps last answered; 0 for never."""
    heard_rate: float = 0.0
    """Global steps per second by then."""
    global_step: int = 0
    last_step: int | None = None
    """`None` where nobody has said how far the training goes."""
    rate: float = 0.0
    """Global steps per second, lately."""
    examples_rate: float = 0.0
    examples_applied: int = 0
    examples_dropped: int = 0
    left_s: float | None = None
    """Seconds until the last step at this rate."""
    loss: float | None = None
    learning_rate: float | None = None
    """Where the optimizer's state has it."""
    staleness_median: float = 0.0
    staleness_p99: float = 0.0
    staleness_max: int = 0
    bytes_in: int = 0
    """Of all ps together."""
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
    """Newest values by name, of a job that is followed by its history."""

    @property
    def live_workers(self) -> int:
        """How many workers are in the job now."""
        return sum(worker.presence == "live" for worker in self.workers)
