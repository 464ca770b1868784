"""Membership: a worker's identity and progress in a job."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.cluster import Cluster
from trainband.cluster.identity import Identity
from trainband.errors import DeadlineExceeded
from trainband.ps.worker.plan import Plan
from trainband.ps.worker.resources import WorkerResources
from trainband.ps.worker.shard_definer import ShardDefiner
from trainband.runtime import Runtime
from trainband.runtime.step_times import StepTimes
from trainband.runtime.waiting import Say, Waiting
from trainband.version import build
from trainband.wire.messages import calls as m
from trainband.wire.transport import Timeouts, Transport

POLL_S = 0.05
"""Seconds between polls of a ps that is not ready yet."""

MOST_POLL_S = 0.5
"""The same, once a worker that joins has waited for some seconds."""

PREEMPTED_WAIT_S = 5.0
"""Seconds that a worker asked to leave waits for an absent ps."""


@dataclass(slots=True)
class Training:
    """The current training, as far as this worker knows.

    Attributes:
      number: its number in the job, from 1; 0 before the first.
      last_version: its last version.
      starts: where each training run of the job began.
    """

    number: int = 0
    last_version: int = m.UNLIMITED
    starts: tuple[int, ...] = ()


class Membership:
    """One worker's place in a job, shared by all parts of its client.

    Args:
      cluster: the tasks, of which this worker is one.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        transport: Transport,
        timeouts: Timeouts,
        say: Say,
        runtime: Runtime,
        resources: WorkerResources,
    ) -> None:
        self.identity = Identity(str(cluster.task), runtime.token())
        self.plan = plan
        self.transport = transport.speaking_as(self.identity)
        self.timeouts = timeouts
        self.say = say
        self.runtime = runtime
        self.resources = resources
        self.definer: ShardDefiner | None = None
        """Gives shards their values while this worker is the chief; created on joining."""
        self.job = ""
        """Random identifier of the job, the same for all tasks."""
        self.joined = False
        """Whether this worker has been in the job: from then on, a ps that is gone may return."""
        self.left = False
        self.numbers: dict[int, int] = {}
        """This worker's number at each ps it has joined."""
        self.paused = False
        """Whether this worker's data is used up."""
        self.first_batch = ""
        """A digest of this worker's first training batch, which ps:0 compares with the others'; empty before it."""
        self.times = StepTimes(narrow=bool(plan.description.push_dtype and plan.description.pull_dtype))
        """Where this worker's steps have spent their time."""
        self._has_given_up = False
        self.request = ""
        """The request to end this worker (see `trainband.runtime.signals`); empty without one. After it, the worker
        waits only `PREEMPTED_WAIT_S` for an absent ps. May be set by a signal handler."""
        self.blocked_by: tuple[str, ...] = ()
        """The workers this one waits for."""
        self.sequence = 0
        """The number of this worker's last push."""
        self.training = Training()

    @property
    def task(self) -> str:
        """The name of this worker."""
        return self.identity.name

    @property
    def incarnation(self) -> str:
        """Random, new for each process."""
        return self.identity.incarnation

    @property
    def standbys(self) -> int:
        """Standbys of each shard."""
        return self.plan.description.standbys

    @property
    def recovers(self) -> bool:
        """Whether to wait for a ps that is gone."""
        return self.standbys > 0 or (self.definer is not None and self.definer.source is not None)

    def application(self) -> m.Join:
        """Returns the join message."""
        runtime, plan = self.runtime, self.plan.description
        return m.Join(
            self.task,
            self.incarnation,
            runtime.host,
            runtime.pid,
            plan,
            self.job,
            self.paused,
            build(),
            self.resources.device,
        )

    def waiting(self, most_s: float) -> Waiting:
        """Starts a wait."""
        return Waiting(most_s, self.say, self.runtime.clock)

    def check(self, waiting: Waiting, awaited: str, advice: str) -> None:
        """Like `Waiting.check`, for an absent ps."""
        if self.request and (self._has_given_up or waiting.waited_s > PREEMPTED_WAIT_S):
            self._has_given_up = True  # later calls while leaving must not wait as long again
            raise DeadlineExceeded(f"waited {waiting.waited_s:.1f} s for {awaited}.")
        waiting.check(awaited, advice)

    def pause(self) -> None:
        """Sleeps between two questions to a ps that is not ready yet."""
        self.runtime.sleep(POLL_S)
