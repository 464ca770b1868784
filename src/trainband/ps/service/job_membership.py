"""JobMembership: tells the rules which workers come and go, and tracks the chief."""

from __future__ import annotations

import math

from trainband.errors import RefusalCode, Refused
from trainband.model.batch import one_data_twice
from trainband.ps.description import first_difference
from trainband.ps.membership.accounts import Account
from trainband.ps.membership.members import Member, Members, Presence
from trainband.ps.replication.shard_replica import ShardReplica
from trainband.ps.service.shard_replicas import ShardReplicas
from trainband.ps.task_state import TaskState
from trainband.version import of_other_code
from trainband.wire.messages import calls as m
from trainband.wire.transport import Stream


class JobMembership:
    """The job's members, as this ps sees them. Called under the lock unless noted."""

    def __init__(self, task: TaskState, members: Members, replicas: ShardReplicas) -> None:
        self._task = task
        self.members = members
        self.accounts: dict[int, Account] = {}
        """Account of each worker, by number."""
        self._streams: list[tuple[Stream, Member]] = []
        """The open streams of the workers."""
        self._replicas = replicas
        self.planned = [str(worker) for worker in task.cluster.spec.workers]
        self.planned_chief = str(task.cluster.spec.chief)
        self._last_chief = self.planned_chief
        self._has_warned = False
        self.lost = ""
        """Why values cannot be recovered, as reported by a worker that left; empty if they can."""
        self._lost_at = 0.0
        self.under_way = False
        """Whether a worker has joined that was in the job before this ps."""

    def chief(self) -> str:
        """Returns the acting chief: the lowest live worker, once the cluster's chief has come and gone.

        A ps that joins a running job treats a chief that it has never seen as gone.
        """
        planned = self.planned_chief
        unknown = self.under_way and all(member.task != planned for member in self.members)
        if not (self.members.has_gone(planned) or unknown):
            self._last_chief = planned
        elif not (self._replicas.are_complete() and self.members.has_left(self._last_chief)):
            # else its duties are done
            live = sorted(self.members.live(), key=lambda member: member.number)
            self._last_chief = live[0].task if live else planned
        return self._last_chief

    def require_chief(self, member: Member, deed: str) -> None:
        """Raises `Refused` unless a worker may act as the chief."""
        chief, planned = self.chief(), self.planned_chief
        if member.task in (chief, planned):
            return
        is_lost = member.presence is Presence.LOST  # until this call is served
        present = sorted([*self.members.live(), *([member] if is_lost else [])], key=lambda one: one.number)
        if (chief == planned or is_lost) and present and present[0] is member:
            return  # the other ps told it that the chief died before it reached this ps
        raise Refused(f"{member.task} may not {deed}: only the chief, {chief}, may.", RefusalCode.NOT_CHIEF)

    def require_same_model(self, replica: ShardReplica, description: m.Description, task: str) -> None:
        """Raises `Refused` if a task's model differs from the one defined here."""
        if replica.description is None:
            return
        difference = first_difference(replica.description, description, task)
        if difference is not None:
            raise Refused(f"{task} cannot join this job: {difference}.", RefusalCode.OTHER_MODEL)

    def of_another_job(self, task: str) -> str:
        """Why a worker of an older job is refused."""
        return (
            f"{task} belongs to a job that has ended; {self._task.name} now serves another one. "
            f"Restart {task} to join that."
        )

    def remove_others(self, job: str) -> None:
        """Removes workers of other jobs: no one waits for them, and their names become free."""
        for other in self.members.of_others(job) if job else ():
            self.members.leave(other, self.of_another_job(other.task))
            self._task.say(other.failure)
            self.gone(other)

    def reset_for_training(self) -> None:
        """Clears losses of an earlier job and resets the workers' push times."""
        self.lost = ""
        for account in self.accounts.values():
            account.pushed_at = self._task.clock()

    def record_first_batch(self, member: Member, digest: str) -> None:
        """Warns, once per job and on ps:0, if another worker began with the same batch."""
        account = self.accounts[member.number]
        if not digest or account.first_batch == digest:
            return
        account.first_batch = digest
        for other in self.members:
            is_same = other is not member and self.accounts[other.number].first_batch == digest
            if is_same and not self._has_warned and self._task.cluster.task.index == 0:
                self._has_warned = True
                self._task.say(one_data_twice(other.task, member.task))

    def join(self, join: m.Join) -> tuple[Member, bool]:
        """Adds a worker; returns it and whether it is new. If refused, it changes nothing.

        Raises:
          Refused: see `Members.join`.
        """
        member, news = self.members.join(join.task, join.incarnation, join.host, join.pid, self._task.clock(), join.job)
        self.accounts.setdefault(member.number, Account())
        known = {one.number for one in self.members}
        for number in self.accounts.keys() - known:  # elastic workers that were forgotten
            del self.accounts[number]
        account = self.accounts[member.number]
        account.device, account.version = join.device, join.version
        if news:
            account.memory = m.NO_MEMORY  # of its previous process
            member.paused = join.paused
            if warning := of_other_code(join.task, join.version, self._task.name):
                self._task.say(warning)
            self._task.log.info("%s joined from process %d on %s", join.task, join.pid, join.host)
            self.came(member)
        return member, news

    def refuse(self, join: m.Join, why: str) -> None:
        """Removes a process if it is already in the job; otherwise leaves no trace."""
        member = self.members.of(join.incarnation)
        if member is not None and member.task == join.task and self.members.leave(member, why):
            self.gone(member)

    def record_contact(self, member: Member) -> None:
        """Notes that a member is alive. Raises `Refused` if another process has its place."""
        if self.members.get(member.number) is not member:
            raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
        if self.members.record_contact(member, self._task.clock()):
            self._task.say(f"{member.task} is back")
            self._task.log.info("%s is back", member.task)
            self.came(member)

    def came(self, member: Member) -> None:
        """Tells the rules that a worker has come, or that it has paused."""
        for replica in self._replicas:
            if member.paused:
                replica.member_left(member.number, gone=False)
            else:
                replica.member_joined(member.number)

    def gone(self, member: Member) -> None:
        """Stops waiting for this worker and reassigns its leases."""
        for replica in self._replicas:
            replica.member_left(member.number, gone=True)
        self._replicas.members_changed()

    def set_aside(self, member: Member) -> None:
        """Ignores a worker until its next push."""
        if not member.paused:
            member.paused = True
            for replica in self._replicas:
                replica.member_left(member.number, gone=False)

    def expire(self) -> None:
        """Drops members whose lease has expired. A frame under way is a sign of life as long as parts of it move."""
        now, lease_s = self._task.clock(), self._task.timeouts.lease_s
        for stream, member in self._streams:
            if member.live and (moved_s := stream.moved_s) < lease_s:
                self.members.record_contact(member, max(member.heard_at, now - moved_s))
        for member in self.members.expired(now):
            self.members.lose(member)
            self._task.log.info("lost %s: no heartbeat for %g s", member.task, lease_s)
            self._task.say(f"{member.task} is gone: no heartbeat for {lease_s:g} s")
            self.gone(member)

    def lose_values(self, why: str) -> None:
        """Notes that a shard's values are lost; each worker learns it with its next heartbeat."""
        self.lost, self._lost_at = why, self._task.clock()

    @property
    def has_lost_values(self) -> bool:
        """Whether values are lost and every worker has been told or a lease has passed."""
        if not self.lost or self.members.live():
            return False
        came = {member.task for member in self.members}
        return came.issuperset(self.planned) or self._task.clock() - self._lost_at >= self._task.timeouts.lease_s

    def moved_s(self, member: Member) -> float:
        """Seconds since a part of a frame that is under way moved on one of a member's streams; see `Stream`."""
        return min((stream.moved_s for stream, owner in self._streams if owner is member), default=math.inf)

    def stream_opened(self, stream: Stream, member: Member, *, bootstrapping: bool) -> None:
        """Records a member's stream; one for first values alone does not show that it is in the job."""
        self._streams.append((stream, member))
        member.streams += not bootstrapping
        self.accounts[member.number].transport = stream.transport
        self.record_contact(member)

    def stream_ended(self, stream: Stream, member: Member, *, bootstrapping: bool) -> None:
        """Marks a member as lost when its last stream ends before it leaves; a heartbeat may bring it back.

        Called without the lock.
        """
        with self._task.lock:
            self._streams = [(one, owner) for one, owner in self._streams if one is not stream]
            if bootstrapping:
                return
            member.streams -= 1
            if member.streams == 0 and not self._task.stopped and self.members.lose(member):
                self._task.say(f"{member.task} is gone: its stream broke off")
                self._task.log.info("lost %s: its stream broke off", member.task)
                self.gone(member)
            self._task.wake.set()
