"""TaskState: the state that all parts of a ps task share."""

from __future__ import annotations

from trainband.cluster import Cluster
from trainband.ps.refusals import Refusals
from trainband.ps.shard.allowed_directories import AllowedDirectories
from trainband.runtime import Runtime
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Say
from trainband.wire.transport import Timeouts


class TaskState:
    """One process of a ps task: its identity, its clock, the one lock around all changes, and whether it ends.

    Args:
      incarnation: random, new for each process.
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
        """Set when the main thread should check the state of the job."""
        self.refusals = Refusals(self.log, self.clock)
        self.stopped = False
        """Whether every stream should end."""
        self.ended = ""
        """Why the job has ended; empty while it has not."""

    def ps_addresses(self) -> list[str]:
        """The address of each ps of the cluster, in order."""
        return [self.cluster.spec.address(task) for task in self.cluster.spec.ps]
