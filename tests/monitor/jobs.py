"""A job that exists only in what its ps would answer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from trainband.errors import Unreachable
from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import PsStatus, SliceStatus, VariableStatus, WorkerStatus
from trainband.monitor.collector import Collector
from trainband.monitor.live_feed import LiveFeed
from trainband.wire.messages.replication import NOBODY, ReplicaState, Term

UPDATES_PER_WORKER = 3.0
"""A second."""


def worker_status(task: str = "worker:0", **values: object) -> WorkerStatus:
    """One worker that is well, but for these values."""
    fields: dict[str, object] = {
        "task": task,
        "presence": "live",
        "host": "host-a",
        "pid": 4711,
        "transport": "flight",
        "pushes": 10,
        "refused": 0,
        "dropped": 0,
        "rate": UPDATES_PER_WORKER,
        "staleness": 1.0,
        "loss": 0.5,
        "examples": 640,
        "heard_s": 0.2,
        "failure": "",
        "time": {"data": 0.05, "compute": 0.5, "send": 0.05, "network": 0.15, "ps": 0.2, "other": 0.05},
    }
    return WorkerStatus(**{**fields, **values})  # type: ignore[arg-type]


def replica_state(
    shard: int, ps: int, role: str, *, term: int = 1, standby: int = NOBODY, version: int = 0
) -> ReplicaState:
    """A replica of a shard as its ps tells of it."""
    return ReplicaState(
        shard=shard,
        ps=ps,
        role=role,  # type: ignore[arg-type]
        lineage="l",
        term=Term(term, ps if role == "primary" else standby, standby if role == "primary" else ps),
        position=version,
        version=version,
        incarnation=f"i{ps}",
    )


def ps_status(number: int = 0, **values: object) -> PsStatus:
    """One ps of a job of one ps and one worker that trains, but for these values."""
    version = int(str(values.get("version", 10)))
    fields: dict[str, object] = {
        "task": f"ps:{number}",
        "address": f"10.0.0.{number}:2222",
        "incarnation": f"i{number}",
        "rule": {"name": "async"},
        "initialised": True,
        "version": version,
        "last_version": 100,
        "ended": False,
        "uptime_s": 60.0,
        "rate": 5.0,
        "staleness_median": 1.0,
        "staleness_p99": 2.0,
        "staleness_max": 3,
        "examples_applied": 640,
        "examples_rate": 320.0,
        "examples_dropped": 0,
        "bytes_in": 1000,
        "bytes_out": 2000,
        "bytes_saved": 0,
        "shard_bytes": 4096,
        "loss": 0.5,
        "waiting_for": (),
        "workers": (worker_status(),),
        "variables": (),
        "replicas": (replica_state(number, number, "primary", version=version),),
        "ps_addresses": (f"10.0.0.{number}:2222",),
    }
    return PsStatus(**{**fields, **values})  # type: ignore[arg-type]


@dataclass
class SimulatedJob:
    """A job of so many workers and ps that trains by the clock that it is given.

    Attributes:
      now: seconds since 1970.
      silent: the ps that do not answer.
      presence: of workers that are not live.
      stuck: workers that live and push nothing.
      held_by: which ps holds each shard, and in which term.
    """

    workers: int
    ps: int
    now: float = 1_800_000_000.0
    last_step: int = 100_000
    names: tuple[str, ...] = ()
    silent: set[int] = field(default_factory=set)
    presence: dict[int, str] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    held_by: dict[int, tuple[int, int]] = field(default_factory=dict)
    checkpoint: CheckpointStatus | None = None
    ended: bool = False
    version: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self._began_at = self.now
        self._pushes = [0] * self.workers
        self._rates = [UPDATES_PER_WORKER] * self.workers

    def address(self, number: int) -> str:
        """Of a ps."""
        return f"10.0.{number // 200}.{number % 200 + 1}:2222"

    def advance(self, seconds: float = 1.0) -> None:
        """Trains for so long."""
        self.now += seconds
        for worker in range(self.workers):
            live = self.presence.get(worker, "live") == "live" and worker not in self.stuck
            slow = 0.4 if worker % 17 == 5 else 1.0
            self._rates[worker] = UPDATES_PER_WORKER * slow * self._random.uniform(0.8, 1.2) if live else 0.0
            self._pushes[worker] += round(self._rates[worker] * seconds)
        if not {self.held_by.get(shard, (shard, 1))[0] for shard in range(self.ps)} & self.silent:
            self.version = min(self.last_step, self.version + round(self.rate * seconds))
        self.ended = self.version >= self.last_step

    @property
    def rate(self) -> float:
        """Updates per second."""
        return sum(self._rates)

    @property
    def loss(self) -> float:
        """It falls, and it is noisy."""
        return float(2.3 / (1 + self.version / 4000) + 0.05 + self._random.gauss(0, 0.02))

    def ask(self, number: int) -> PsStatus:
        """What a ps answers.

        Raises:
          Unreachable: it is silent.
        """
        if number in self.silent:
            raise Unreachable(f"nothing listens at {self.address(number)}.")
        loss = self.loss
        replicas = []
        for shard in range(self.ps):
            holder, term = self.held_by.get(shard, (shard, 1))
            other = (shard + 1) % self.ps if holder == shard else shard
            standby = other if self.ps > 1 and other not in self.silent else NOBODY
            if number == holder:
                replicas.append(
                    replica_state(shard, number, "primary", term=term, standby=standby, version=self.version)
                )
            elif number == standby:
                replicas.append(
                    replica_state(shard, number, "standby", term=term, standby=number, version=self.version)
                )
        return ps_status(
            number,
            address=self.address(number),
            version=self.version,
            last_version=self.last_step,
            ended=self.ended,
            uptime_s=self.now - self._began_at,
            rate=self.rate,
            examples_applied=self.version * 64,
            examples_rate=self.rate * 64,
            bytes_in=self.version * 320_000,
            bytes_out=self.version * 320_000,
            shard_bytes=sum(variable.nbytes for variable in self._variables()) // self.ps,
            memory_bytes=720_000_000 + 120_000_000 // self.ps,
            memory_parts={
                "params": 120_000_000 // self.ps,
                "state": 240_000_000 // self.ps,
                "gradients": 0,
                "versions": 120_000_000 // self.ps,
                "buffers": 130_000_000 // self.ps,
                "rest": 720_000_000 - 490_000_000 // self.ps,
            },
            update_s=0.37 * (self.now - self._began_at),
            loss=loss,
            learning_rate=1e-3 * 0.5 * (1 + math.cos(math.pi * self.version / self.last_step)),
            workers=tuple(self._worker(worker, loss) for worker in range(self.workers)),
            variables=self._variables(),
            chief="worker:0",
            checkpoint=self.checkpoint,
            replicas=tuple(replicas),
            ps_addresses=tuple(map(self.address, range(self.ps))),
        )

    def _worker(self, worker: int, loss: float) -> WorkerStatus:
        presence = self.presence.get(worker, "live")
        return worker_status(
            f"worker:{worker}",
            presence=presence,
            host=f"node-{worker // 8:03}",
            pid=20_000 + worker,
            transport="ucx" if worker % 3 else "shared memory",
            pushes=self._pushes[worker],
            dropped=self._pushes[worker] // 97,
            rate=self._rates[worker],
            staleness=self._random.uniform(1, 4),
            loss=loss + self._random.gauss(0, 0.03),
            examples=self._pushes[worker] * 64,
            heard_s=0.3 if presence == "live" else 42.0,
            failure="ValueError: the data are gone" if presence == "failed" else "",
            stalled_s=21.0 if worker in self.stuck else 0.0,
            device="NVIDIA H100 80GB HBM3" if worker % 8 < 6 else "cpu",
            memory_bytes=2_100_000_000 + 7_000_000 * (worker % 40),
            memory_parts={"params": 120_000_000, "gradients": 120_000_000, "rest": 1_860_000_000},
            device_memory_bytes=41_300_000_000 + 90_000_000 * (worker % 11) if worker % 8 < 6 else 0,
            device_memory_limit_bytes=63_700_000_000 if worker % 8 < 6 else 0,
        )

    def _variables(self) -> tuple[VariableStatus, ...]:
        names = self.names or tuple(
            f"layer_{layer:02}/{part}"
            for layer in range(12)
            for part in ("attention/kernel", "attention/bias", "mlp/kernel")
        )
        found = []
        for place, name in enumerate(names):
            shape = (768,) if name.endswith("bias") else (768, 3072)
            nbytes = 4 * 768 * (1 if len(shape) == 1 else 3072)
            first = place % self.ps
            slices = (
                (SliceStatus(f"ps:{first}", 0, 768),)
                if self.ps == 1 or len(shape) == 1
                else (SliceStatus(f"ps:{first}", 0, 384), SliceStatus(f"ps:{(first + 1) % self.ps}", 384, 768))
            )
            found.append(VariableStatus(name, shape, "float32", nbytes, slices))
        return tuple(found)


def collector_of(job: SimulatedJob, feed: LiveFeed) -> Collector:
    """A collector whose looks wait for all answers, however slow this machine is."""
    return Collector(
        job.address(0), feed, connect=lambda address: SimulatedAsker(job, address), clock=lambda: job.now, wait_s=60.0
    )


class SimulatedAsker:
    """Asks one ps of a simulated job, as `Inquiry` asks a real one."""

    def __init__(self, job: SimulatedJob, address: str) -> None:
        self._job = job
        self._number = next(number for number in range(job.ps) if job.address(number) == address)

    def ask(self) -> PsStatus:
        """Its status."""
        return self._job.ask(self._number)

    def close(self) -> None:
        """Nothing is open."""
