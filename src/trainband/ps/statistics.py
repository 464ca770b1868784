"""What a ps knows about its job, as frozen records: the console, `trainband status` and metrics read only these."""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct

from trainband.runtime.formatting import size
from trainband.wire.replication import ReplicaState

RATE_WINDOW_S = 2.0
"""Rates are means over about this long."""


class WorkerStatus(Struct, frozen=True):
    """One worker as a ps sees it."""

    task: str
    presence: str
    host: str
    pid: int
    transport: str
    pushes: int
    refused: int
    """Pushes whose gradient was not finite."""
    dropped: int
    rate: float
    """Pushes per second, lately."""
    staleness: float
    """Mean staleness of its updates, lately."""
    loss: float | None
    examples: int
    heard_s: float
    """Seconds since its last sign of life."""
    failure: str
    stalled_s: float = 0.0
    """Seconds for which it has pushed nothing though others wait for it; 0 where it is not stuck."""
    non_finite_losses: int = 0
    """Pushes whose loss was NaN or infinite, though the gradient was finite."""
    share: float = 0.0
    """Of the examples of an update, where the rule divides them by speed; 0 where it does not."""
    time: dict[str, float] = {}
    """The share of each part of its steps in its time, lately, see `step_times.PARTS`; `other` is the rest."""
    device: str = ""
    """What it computes on: `cpu`, `NVIDIA H100 80GB HBM3`, `8 × TPU v5e`; empty where it has not said."""
    memory_bytes: int = 0
    """Resident memory of its process; here and below, 0 where its platform doesn't say."""
    device_memory_bytes: int = 0
    """In use on the devices that it computes on, all together."""
    device_memory_limit_bytes: int = 0
    """How much they have for its process."""

    @property
    def memory(self) -> str:
        """For people: of its process and, behind a plus, on devices that say so: `1.2 GB + 60.1 GB`."""
        process = size(self.memory_bytes) if self.memory_bytes else ""
        return f"{process} + {size(self.device_memory_bytes)}" if self.device_memory_limit_bytes else process


class SliceStatus(Struct, frozen=True):
    """Where rows [start, stop) of a variable live."""

    ps: str
    start: int
    stop: int


class VariableStatus(Struct, frozen=True):
    """One variable and where it lives."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    slices: tuple[SliceStatus, ...]


class CheckpointStatus(Struct, frozen=True):
    """The last checkpoint that has landed."""

    global_step: int
    nbytes: int
    seconds: float
    """That it took, from when its step had come."""

    def __str__(self) -> str:
        return f"checkpoint of global step {self.global_step:,}: {size(self.nbytes)} in {self.seconds:.1f} s"


class PsStatus(Struct, frozen=True):
    """A ps, and through it the job."""

    task: str
    address: str
    incarnation: str
    rule: dict[str, str | int | float | bool | None]
    initialised: bool
    version: int
    last_version: int
    ended: bool
    uptime_s: float
    rate: float
    """Updates per second, lately."""
    staleness_median: float
    staleness_p99: float
    staleness_max: int
    examples_applied: int
    """Examples whose gradients are in the updates."""
    examples_rate: float
    """Examples per second that become part of updates, lately."""
    examples_dropped: int
    """Examples whose gradients came too late, or beyond the updates that were asked for."""
    bytes_in: int
    bytes_out: int
    bytes_saved: int
    """By sending gradients in a narrower dtype."""
    shard_bytes: int
    loss: float | None
    """Mean loss of the latest pushes of all workers."""
    waiting_for: tuple[str, ...]
    workers: tuple[WorkerStatus, ...]
    variables: tuple[VariableStatus, ...]
    checkpoint: CheckpointStatus | None = None
    chief: str = ""
    """The worker that has the chief's duties now."""
    replicas: tuple[ReplicaState, ...] = ()
    """Which shards this ps holds or follows."""
    update_s: float = 0.0
    """Seconds that updates of the shard that the status is of have taken, since this ps holds it."""
    ps_addresses: tuple[str, ...] = ()
    """Of all ps of the job, by index, as its tasks know them: a viewer that knows one finds the others."""
    memory_bytes: int = 0
    """Resident memory of its process; 0 where its platform doesn't say."""
    learning_rate: float | None = None
    """That of the last update, where the optimizer's state has it: by `optax.inject_hyperparams`, or one of Keras's."""


class Rate:
    """Events per second over the last `RATE_WINDOW_S`, from a few samples of a counter.

    It counts from the first event, for which everything may have been compiled.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._begun = False

    def at(self, now: float, count: int) -> float:
        """Notes that `count` events had happened by `now`; returns events per second."""
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
        """The smallest staleness that at least the share `q` of the updates did not exceed; 0 without updates."""
        total = self._counts.total()
        seen = 0
        for staleness in sorted(self._counts):
            seen += self._counts[staleness]
            if seen >= q * total:
                return float(staleness)
        return 0.0

    def maximum(self) -> int:
        """The largest staleness of any update."""
        return max(self._counts, default=0)
