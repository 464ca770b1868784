"""JobMembership: what the coming and going of workers means for the rules, and who is the chief."""

from __future__ import annotations

from trainband.errors import RefusalCode, Refused
from trainband.model.batch import one_data_twice
from trainband.ps.membership.accounts import Account
from trainband.ps.membership.members import Member, Members, Presence
from trainband.ps.server.shard_replicas import ShardReplicas
from trainband.ps.server.task_state import TaskState
from trainband.wire import messages as m


class JobMembership:
    """Who is in the job, as this ps sees it. Called under the lock, where it does not say otherwise.

    Args:
      task: what all parts of this ps share.
      members: who is in the job.
      replicas: of the ps, whose rules count the workers.
    """

    def __init__(self, task: TaskState, members: Members, replicas: ShardReplicas) -> None:
        self._task = task
        self.members = members
        self.accounts: dict[int, Account] = {}
        """What each worker has done, by number."""
        self._replicas = replicas
        self.planned = [str(worker) for worker in task.cluster.spec.workers]
        self.planned_chief = str(task.cluster.spec.chief)
        self._last_chief = self.planned_chief
        self._has_warned = False
        self.lost = ""
        """Why the job is over with values that nobody can give back, as a worker has said that left; else empty."""
        self._lost_at = 0.0
        self.under_way = False
        """Whether somebody has joined who has been in the job before this ps was."""

    def chief(self) -> str:
        """Who has the chief's duties: the lowest live worker, once the cluster's chief has come and gone.

        To a ps that has come into a job under way, a chief that it has never seen is gone.
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
        """Raises `Refused` if a worker wants to do what only the chief may, and is not the chief."""
        chief, planned = self.chief(), self.planned_chief
        if member.task in (chief, planned):
            return
        is_lost = member.presence is Presence.LOST  # which this call, if it is served, ends
        present = sorted([*self.members.live(), *([member] if is_lost else [])], key=lambda one: one.number)
        if (chief == planned or is_lost) and present and present[0] is member:
            return  # of a chief that has died before it came here, the other ps have told this one
        raise Refused(f"{member.task} may not {deed}: only the chief may, which is {chief}.", RefusalCode.NOT_CHIEF)

    def note_first_batch(self, member: Member, digest: str) -> None:
        """Warns, once a job and on ps:0, where another worker has begun with the same batch."""
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
        """Takes a worker in; returns it and whether that is news. Where it is refused, nothing has changed.

        Raises:
          Refused: see `Members.join`.
        """
        member, news = self.members.join(join.task, join.incarnation, join.host, join.pid, self._task.clock(), join.job)
        self.accounts.setdefault(member.number, Account())
        known = {one.number for one in self.members}
        for number in self.accounts.keys() - known:  # guests that were forgotten
            del self.accounts[number]
        account = self.accounts[member.number]
        account.device = join.device
        if news:
            account.memory = m.NO_MEMORY  # of a process before this one
            member.paused = join.paused
            self._task.log.info("%s joined from process %d on %s", join.task, join.pid, join.host)
            self.came(member)
        return member, news

    def refuse(self, join: m.Join, why: str) -> None:
        """Takes a process that is in the job already out of it again. One that is not in it leaves no trace."""
        member = self.members.of(join.incarnation)
        if member is not None and member.task == join.task and self.members.leave(member, why):
            self.gone(member)

    def hear(self, member: Member) -> None:
        """Notes a sign of life. Raises `Refused` if another process has the member's place."""
        if self.members.get(member.number) is not member:
            raise Refused(f"another process has taken the place of {member.task} in the job.", RefusalCode.REPLACED)
        if self.members.heard(member, self._task.clock()):
            self._task.say(f"{member.task} is back")
            self._task.log.info("%s is back", member.task)
            self.came(member)

    def came(self, member: Member) -> None:
        """The rules count a worker from now on, or know that it has come if it has paused."""
        for replica in self._replicas:
            if member.paused:
                replica.journal.member_left(member.number, gone=False)
            else:
                replica.journal.member_joined(member.number)

    def gone(self, member: Member) -> None:
        """Nobody waits for this worker any more, and what it had leased goes to others."""
        for replica in self._replicas:
            replica.journal.member_left(member.number, gone=True)
        for replicator in self._replicas.replicators.values():
            replicator.changed()

    def set_aside(self, member: Member) -> None:
        """Counts a worker no more until its next push."""
        if not member.paused:
            member.paused = True
            for replica in self._replicas:
                replica.journal.member_left(member.number, gone=False)

    def expire(self) -> None:
        """Loses the members whose lease has ended."""
        for member in self.members.expired(self._task.clock()):
            self.members.lose(member)
            self._task.log.info("lost %s: not heard for %g s", member.task, self._task.timeouts.lease_s)
            self._task.say(f"{member.task} is gone: not heard for {self._task.timeouts.lease_s:g} s")
            self.gone(member)

    def lose_values(self, why: str) -> None:
        """Notes that nobody can give a shard its values back: every worker hears it with its next heartbeat."""
        self.lost, self._lost_at = why, self._task.clock()

    @property
    def has_lost_values(self) -> bool:
        """Whether the job is over because of that, and every worker has heard it, or had a lease for that."""
        if not self.lost or self.members.live():
            return False
        came = {member.task for member in self.members}
        return came.issuperset(self.planned) or self._task.clock() - self._lost_at >= self._task.timeouts.lease_s

    def stream_ended(self, member: Member) -> None:
        """A stream of `member` has ended. Unless the member left, it is lost at once; its heartbeat may bring it back.

        Called without the lock.
        """
        with self._task.lock:
            member.streams -= 1
            if member.streams == 0 and not self._task.stopped and self.members.lose(member):
                self._task.say(f"{member.task} is gone: its stream broke off")
                self._task.log.info("lost %s: its stream broke off", member.task)
                self.gone(member)
            self._task.wake.set()
