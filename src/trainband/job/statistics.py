"""A ps's knowledge of its job, as frozen records: the console, `trainband status` and metrics read only these."""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct

from trainband.job.checkpoints import CheckpointStatus
from trainband.runtime.formatting import size
from trainband.wire.messages import fields as f
from trainband.wire.messages.replication import ReplicaState

RATE_WINDOW_S = 2.0
"""Rates are means over about this long."""


class WorkerStatus(Struct, frozen=True):
    """One worker as a ps sees it."""

    task: f.Word
    presence: f.Word
    host: f.Host
    pid: int
    transport: f.Word
    pushes: int
    refused: int
    """Pushes whose gradient was not finite."""
    dropped: int
    rate: float
    """Recent pushes per second."""
    staleness: float
    """Recent mean staleness of its updates."""
    loss: float | None
    examples: int
    heard_s: float
    """Seconds since its last message."""
    failure: f.Text
    stalled_s: float = 0.0
    """Seconds for which it has pushed nothing although others wait for it; 0 if it is not stuck."""
    non_finite_losses: int = 0
    """Pushes whose loss was NaN or infinite although the gradient was finite."""
    share: float = 0.0
    """Its share of an update's examples if the rule divides them by speed; else 0."""
    time: dict[f.Word, float] = {}
    """Recent share of each part of a step in its time, see `step_times.PARTS`; `other` is the rest."""
    device: f.Word = ""
    """The device that it computes on: `cpu`, `NVIDIA H100 80GB HBM3`, `8 × TPU v5e`; empty if unknown."""
    memory_bytes: int = 0
    """Memory of its process and those that it started, see `runtime.memory.ProcessMemory`; here and below, 0 if its
    platform does not report it."""
    memory_parts: dict[f.Word, int] = {}
    """Its parts in bytes, by `runtime.memory.PARTS`; empty if unknown."""
    device_memory_bytes: int = 0
    """Device memory in use, on all its devices together."""
    device_memory_limit_bytes: int = 0
    """The limit for its process."""
    version: f.Word = ""
    """The build of trainband that it runs: `0.1.0+3f2a9c1b`."""

    @property
    def memory(self) -> str:
        """Text for people: process memory plus, if reported, device memory: `1.2 GB + 60.1 GB`."""
        process = size(self.memory_bytes) if self.memory_bytes else ""
        return f"{process} + {size(self.device_memory_bytes)}" if self.device_memory_limit_bytes else process


class SliceStatus(Struct, frozen=True):
    """The place of rows [start, stop) of a variable."""

    ps: f.Word
    start: int
    stop: int


class VariableStatus(Struct, frozen=True):
    """One variable and its place."""

    name: f.Name
    shape: tuple[int, ...]
    dtype: f.Word
    nbytes: int
    slices: tuple[SliceStatus, ...]


class TableStatus(Struct, frozen=True):
    """One ps's part of a table; counts are since it has held it."""

    name: f.Word
    rows: int
    nbytes: int
    """Memory of the rows, their state and the index."""
    hits: int
    """Ids looked up that had a row."""
    misses: int
    admitted: int
    """Rows made by training."""
    refused: int
    """Updates of ids without a row that were dropped, by the rule of admission or for want of room."""
    evicted: int


class PsStatus(Struct, frozen=True):
    """One ps, with its view of the job."""

    task: f.Word
    address: f.Word
    incarnation: f.Word
    rule: f.RuleSettings
    initialised: bool
    version: int
    last_version: int
    ended: bool
    uptime_s: float
    rate: float
    """Recent updates per second."""
    staleness_median: float
    staleness_p99: float
    staleness_max: int
    examples_applied: int
    """Examples whose gradients are in the updates."""
    examples_rate: float
    """Recent examples per second that become part of updates."""
    examples_dropped: int
    """Examples whose gradients came too late, or after the requested updates."""
    bytes_in: int
    bytes_out: int
    bytes_saved: int
    """Saved by sending gradients and params in a narrower dtype."""
    shard_bytes: int
    loss: float | None
    """Mean loss of the latest pushes of all workers."""
    waiting_for: tuple[f.Word, ...]
    workers: tuple[WorkerStatus, ...]
    variables: tuple[VariableStatus, ...]
    checkpoint: CheckpointStatus | None = None
    chief: f.Word = ""
    """The worker that has the chief's duties now."""
    replicas: tuple[ReplicaState, ...] = ()
    """Which shards this ps holds or follows."""
    update_s: float = 0.0
    """Seconds spent on updates of this status's shard since this ps holds it."""
    ps_addresses: tuple[f.Word, ...] = ()
    """Addresses of all ps of the job, by index: a viewer that knows one ps finds the others."""
    memory_bytes: int = 0
    """Memory of its process and those that it started; 0 if its platform does not report it."""
    memory_parts: dict[f.Word, int] = {}
    """Its parts in bytes, by `runtime.memory.PARTS`; empty if unknown."""
    learning_rate: float | None = None
    """That of the last update, if the optimizer's state has it: by `optax.inject_hyperparams`, or one of Keras's."""
    trainband: f.Word = ""
    """The build of trainband that it runs."""
    threads: int = 0
    """Threads of its process; here and below, 0 if its platform does not report it."""
    descriptors: int = 0
    """Open file descriptors of its process."""
    tables: tuple[TableStatus, ...] = ()
    """Its part of each table of the job."""


class Rate:
    """Events per second over the last `RATE_WINDOW_S`, from a few samples of a counter.

    It counts from the first event, since compiling may precede it.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._begun = False

    def at(self, now: float, count: int) -> float:
        """Records that `count` events had happened by `now`; returns events per second."""
        samples = self._samples
        if samples and not self._begun:
            self._begun = count != samples[0][1]
            samples.clear()
        if not samples or now > samples[-1][0]:
            samples.append((now, count))
        while len(samples) > 2 and samples[1][0] <= now - RATE_WINDOW_S:
            samples.popleft()
        span = samples[-1][0] - samples[0][0]
        return (samples[-1][1] - samples[0][1]) / span if span > 0 else 0.0


class StalenessCounts:
    """How often each staleness occurred."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, staleness: int) -> None:
        """Counts one update."""
        self._counts[staleness] += 1

    def quantile(self, q: float) -> float:
        """Returns the smallest staleness that at least the share `q` of the updates did not exceed, 0 without any."""
        total = self._counts.total()
        seen = 0
        for staleness in sorted(self._counts):
            seen += self._counts[staleness]
            if seen >= q * total:
                return float(staleness)
        return 0.0

    def maximum(self) -> int:
        """Returns the largest staleness of any update."""
        return max(self._counts, default=0)
