"""Replicator: the thread and the sockets around a replica's failover.

On a primary it keeps the standby (`Recruiter`) and sends it the records (`RecordSender`). On a standby it takes
them (`RecordTaker`) and watches the primary (`PrimaryWatch`). On either it asks the arbiter (`Votes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainband.errors import PeerError
from trainband.ps.replication.failover import Role
from trainband.ps.replication.notices import Notices
from trainband.ps.replication.other_replica import Connect, OtherReplica
from trainband.ps.replication.primary_watch import PrimaryWatch
from trainband.ps.replication.record_sender import RecordSender
from trainband.ps.replication.record_taker import RecordTaker
from trainband.ps.replication.recruiter import Recruiter
from trainband.ps.replication.role_changes import RoleChanges
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.replication.votes import Votes
from trainband.ps.replication.wakeups import Wakeups
from trainband.runtime import SYSTEM, Lock, Runtime
from trainband.runtime.waiting import Say
from trainband.wire.transport import Timeouts

TICK_S = 0.1
"""Between two looks at the other replica."""


class Replicator:
    """Keeps one replica in step with the other.

    Args:
      replica: which.
      lock: the service's, which guards it.
      connect: the way to the other ps.
      arbiter: called under the lock with the present one and the other replica's host: who should decide.
      names: what a worker of this incarnation is called.
      heard_s: called under the lock: seconds since it was heard here.
      timeouts: how long to wait for what.
      say: where lines for people go.
      runtime: this task's.
    """

    def __init__(
        self,
        replica: ShardReplica,
        lock: Lock,
        *,
        connect: Connect,
        arbiter: Callable[[str, str], str],
        names: Callable[[str], str],
        heard_s: Callable[[str], float],
        timeouts: Timeouts,
        say: Say,
        runtime: Runtime = SYSTEM,
    ) -> None:
        clock = runtime.clock
        self._replica = replica
        self._failover = replica.failover
        self._wakeups = wakeups = Wakeups(lock, runtime)
        self._notices = notices = Notices(say, clock)
        self.other = other = OtherReplica(replica.number, connect, replace(timeouts, stall_s=timeouts.lease_s), clock)
        """The other replica of the shard."""
        roles = RoleChanges(replica, other, wakeups, notices, clock)
        self.taker = taker = RecordTaker(replica, other, wakeups, roles)
        """Takes the records of a primary."""
        self.votes = votes = Votes(
            replica, other, wakeups, notices, roles, taker, arbiter=arbiter, names=names, heard_s=heard_s
        )
        """Asks the arbiter."""
        self.sender = RecordSender(replica, other, wakeups, notices, roles, votes, runtime)
        """Sends the records of a primary."""
        self._recruiter = Recruiter(replica, other, wakeups, notices, roles, votes, self.sender, clock)
        self._watch = PrimaryWatch(replica, lock, other, notices, roles, taker, votes, clock)
        self._thread = runtime.thread(self._run, f"trainband-replica-{replica.number}")

    def start(self) -> None:
        """Begins, where it has not. Called under the lock."""
        if not self._thread.is_alive() and not self._wakeups.stopped:
            self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Ends; called without the lock. Idempotent."""
        self._wakeups.stop()
        self.sender.hang_up()  # which ends whatever the thread waits for
        if self._thread.is_alive():
            self._thread.join(grace_s)
        self.sender.hang_up()

    def changed(self) -> None:
        """The replica has got another role, or a worker has come or gone. Called under the lock."""
        self._wakeups.notify()

    def _run(self) -> None:
        while self._goes_on():
            role = self._failover.role
            try:
                if role is Role.PRIMARY:
                    self._recruiter.look()
                elif role in (Role.STANDBY, Role.LEARNER):
                    self.sender.hang_up()  # on a replica that has handed over
                    self._watch.look()
            except PeerError as exc:
                self._notices.tell(f"{self._replica.name}: {exc}")
            except Exception as exc:  # a shard whose replicator has ended would never have a standby again
                self._notices.tell(f"{self._replica.name}: {type(exc).__name__}: {exc}")

    def _goes_on(self) -> bool:
        """Waits for the next look at the other replica; returns whether there is to be one."""
        self._wakeups.wake.wait(TICK_S)
        self._wakeups.wake.clear()
        return not self._wakeups.stopped
