"""TaskState: what all parts of a ps task share."""

from __future__ import annotations

from trainband.cluster import Cluster
from trainband.ps.server.allowed_directories import AllowedDirectories
from trainband.ps.server.refusals import Refusals
from trainband.runtime import Runtime
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Say
from trainband.wire.transport import Timeouts


class TaskState:
    """One life of a ps task: who it is, its clock, the one lock around all that changes, and whether it ends.

    Args:
      cluster: and which of its ps this is.
      timeouts: how long to wait for what.
      say: where lines for people go.
      directories: where checkpoints may be.
      incarnation: random, one for each life of the process.
      runtime: its clock and threads.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeouts: Timeouts,
        say: Say,
        directories: AllowedDirectories,
        incarnation: str,
        runtime: Runtime,
    ) -> None:
        self.cluster = cluster
        self.name = str(cluster.task)
        self.timeouts = timeouts
        self.say = say
        self.directories = directories
        self.log = task_logger("trainband.ps.server", self.name)
        self.incarnation = incarnation
        self.runtime = runtime
        self.clock = runtime.clock
        self.host = runtime.host
        self.born = runtime.clock()
        self.lock = runtime.lock()
        self.wake = runtime.event()
        """Set when the main thread should look at what has become of the job."""
        self.refusals = Refusals(self.log, self.clock)
        self.stopped = False
        """Whether every stream should end."""
        self.ended = ""
        """Why the job has ended, where it has."""

    def ps_addresses(self) -> list[str]:
        """Of each ps of the cluster, in their order."""
        return [self.cluster.spec.address(task) for task in self.cluster.spec.ps]
