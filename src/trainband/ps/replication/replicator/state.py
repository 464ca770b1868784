"""ReplicatorState: the state that all parts of a replicator share."""

from __future__ import annotations

from dataclasses import replace

from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.task_state import TaskState
from trainband.runtime.waiting import Waiting


class ReplicatorState:
    """The lock, wake-ups and messages of one replica."""

    def __init__(self, replica: ShardReplica, task: TaskState) -> None:
        self.replica = replica
        self.failover = replica.failover
        self.runtime = task.runtime
        self.clock = task.clock
        self.timeouts = replace(task.timeouts, stall_s=task.timeouts.lease_s)
        self.say = task.say
        self.lock = task.lock
        self.changed = task.runtime.condition(task.lock)
        """Notified when the replica's role changes, the other one confirms more, or a stream ends."""
        self.wake = task.runtime.event()
        """Set when the next check of the other replica is due at once."""
        self.stopped = False
        """Whether this replica is no longer kept."""
        self._reported = ""
        self._waiting: Waiting | None = None

    def notify(self) -> None:
        """Wakes threads that wait for a change. Called under the lock."""
        self.changed.notify_all()
        self.wake.set()

    def stop(self) -> None:
        """Ends all waits. Called without the lock."""
        with self.lock:
            self.stopped = True
            self.changed.notify_all()
        self.wake.set()

    def report_once(self, text: str) -> None:
        """Reports a problem, once for as long as it is the same."""
        if text != self._reported:
            self._reported = text
            self.say(text)

    def start_wait(self) -> Waiting:
        """Returns the wait for the other replica; starts one if there is none."""
        self._waiting = self._waiting or Waiting(None, self.say, self.clock)
        return self._waiting

    def end_wait(self) -> None:
        self._waiting = None
