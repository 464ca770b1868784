"""Membership: what a worker is in a job, and how far it has come there."""

from __future__ import annotations

from trainband.cluster import Cluster
from trainband.errors import DeadlineExceeded
from trainband.ps.description import Plan
from trainband.ps.worker.bootstrapper import Bootstrapper
from trainband.ps.worker.resources import WorkerResources
from trainband.runtime import Runtime
from trainband.runtime.step_times import StepTimes
from trainband.runtime.waiting import Say, Waiting
from trainband.version import VERSION
from trainband.wire import messages as m
from trainband.wire.transport import Timeouts, Transport

POLL_S = 0.05
"""Between two questions to a ps that is not ready yet."""

PREEMPTED_WAIT_S = 5.0
"""How long a worker that is asked to leave waits for a ps that is away."""


class Membership:
    """One worker's place in a job, which all parts of its client share.

    Args:
      cluster: the tasks, and which of them this worker is.
      plan: of the job.
      transport: how bytes travel.
      timeouts: how long to wait for what.
      say: tells the user.
      runtime: this task's.
      incarnation: random, one for each life of the process.
      resources: what this worker uses.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        transport: Transport,
        timeouts: Timeouts,
        say: Say,
        runtime: Runtime,
        incarnation: str,
        resources: WorkerResources,
    ) -> None:
        self.task = str(cluster.task)
        self.plan = plan
        self.transport = transport
        self.timeouts = timeouts
        self.say = say
        self.runtime = runtime
        self.incarnation = incarnation
        self.resources = resources
        self.standbys = plan.description.standbys
        """How many each shard has."""
        self.bootstrapper: Bootstrapper | None = None
        """With which this worker gives shards their values while it is the chief; made when it joins."""
        self.job = ""
        """Which job this is: random, the same for all its tasks."""
        self.joined = False
        """Whether this worker has been in the job: from then on, a ps that is gone may come back."""
        self.left = False
        self.paused = False
        """Whether this worker's data is used up."""
        self.first_batch = ""
        """A digest of the first batch that this worker has trained on; empty before."""
        self.times = StepTimes()
        """What this worker's steps have spent their time on."""
        self._has_given_up = False
        self.request = ""
        """The request to end that this worker has had (see `trainband.runtime.signals`); empty without one."""
        self.blocked_by: tuple[str, ...] = ()
        """The workers that this one waits for."""
        self.sequence = 0
        """The number of this worker's last push."""
        self.fit = 0
        """The number of the training that is under way."""
        self.last_version = m.UNLIMITED
        """At which that training ends."""
        self.trainings: tuple[int, ...] = ()
        """Where each training of the job that is under way began."""

    @property
    def recovers(self) -> bool:
        """Whether a ps that is gone is waited for."""
        return self.standbys > 0 or (self.bootstrapper is not None and self.bootstrapper.source is not None)

    def application(self) -> m.Join:
        """With which this worker joins a ps."""
        runtime, plan = self.runtime, self.plan.description
        return m.Join(
            self.task,
            self.incarnation,
            runtime.host,
            runtime.pid,
            plan,
            self.job,
            self.paused,
            VERSION,
            self.resources.device,
        )

    def waiting(self, most_s: float) -> Waiting:
        """A wait that begins now."""
        return Waiting(most_s, self.say, self.runtime.clock)

    def check(self, waiting: Waiting, whom: str, advice: str) -> None:
        """As `Waiting.check`, of a ps that is away."""
        if self.request and (self._has_given_up or waiting.waited_s > PREEMPTED_WAIT_S):
            self._has_given_up = True  # what else is asked of it on leaving shall not take as long again
            raise DeadlineExceeded(f"waited {waiting.waited_s:.1f} s for {whom}.")
        waiting.check(whom, advice)

    def pause(self) -> None:
        """Sleeps between two questions to a ps that is not ready yet."""
        self.runtime.sleep(POLL_S)
