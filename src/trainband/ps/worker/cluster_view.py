"""ClusterView: what a worker knows of the job from the answers to its heartbeats, and what it decides as an arbiter."""

from __future__ import annotations

from trainband.ps.replication.failover import Arbiter, Role
from trainband.ps.worker.shard_link import Link
from trainband.runtime import Runtime
from trainband.wire import messages as m
from trainband.wire.replication import NOBODY, Term, VoteRequest, arbiter_name


class ClusterView:
    """Every ps as it was last heard. Any thread may ask; each ps has one that notes.

    Args:
      incarnation: of this worker.
      chief: the cluster's.
      runtime: this task's.
      lease_s: within which every worker that lives has joined a ps that is new.
    """

    def __init__(self, incarnation: str, chief: str, runtime: Runtime, lease_s: float) -> None:
        self.chief = chief
        """The worker that has the chief's duties now."""
        self._known_as = arbiter_name(incarnation)
        self.lost = ""
        """Why nobody can give a shard its values back, as another worker has found; empty where none has."""
        self._seen: dict[int, m.JobState | None] = {}
        self._clock = runtime.clock
        self._lease_s = lease_s
        self._nobody_since: float | None = None
        """Since when no ps that was heard has had the first shard."""
        self._made_at = runtime.clock()
        self._heard_at: dict[int, float] = {}
        self._unanswered: dict[int, int] = {}
        self._arbiter = Arbiter()
        self._deciding = runtime.lock()

    def note(self, ps: int, state: m.JobState | None, *, begun: bool) -> list[VoteRequest]:
        """Notes an answer, `None` where there was none; returns the vote requests that this worker must decide.

        `begun`: whether a training has begun. From then on, who the chief is the ps knows that holds the first shard;
        or, if none does, one that has come in its place, once it knows all workers.
        """
        self._seen[ps] = state
        if state is None:
            self._unanswered[ps] = self.unanswered(ps) + 1
            return []
        self._unanswered[ps] = 0
        self.heard(ps)
        self.lost = self.lost or (state.lost if begun else "")
        orphaned = self._is_orphaned()
        for replica in state.replicas:
            if replica.shard == 0 and (replica.role == Role.PRIMARY.value or not begun or orphaned):
                self.chief = state.chief
        vote_requests = [replica.vote_request for replica in state.replicas if replica.vote_request is not None]
        return [vote_request for vote_request in vote_requests if vote_request.arbiter == self._known_as]

    def _is_orphaned(self) -> bool:
        """Whether for a lease no ps that was heard has had the first shard."""
        states = [state for state in self._seen.values() if state is not None]
        if not all(has_nothing(state, 0) for state in states):
            self._nobody_since = None
        elif self._nobody_since is None:
            self._nobody_since = self._clock()
        return self._nobody_since is not None and self._clock() - self._nobody_since >= self._lease_s

    def grants(self, vote_request: VoteRequest) -> bool:
        """Decides a vote request, see `Arbiter`."""
        with self._deciding:
            return self._arbiter.grants(vote_request)

    def decides(self) -> bool:
        """Whether two replicas of a shard have only this worker to decide which of them goes on, while others train."""
        newest: dict[int, Term] = {}
        for state in self._seen.values():
            for replica in state.replicas if state is not None and state.live else ():
                known = newest.get(replica.shard)
                holds = replica.role in (Role.PRIMARY.value, Role.STANDBY.value)
                if holds and (known is None or known.number < replica.term.number):
                    newest[replica.shard] = replica.term
        return any(term.arbiter == self._known_as and term.standby != NOBODY for term in newest.values())

    def heard(self, ps: int) -> None:
        """Notes that a ps has answered something else than a heartbeat."""
        self._heard_at[ps] = self._clock()

    def silent_s(self, ps: int) -> float:
        """Seconds since a ps has answered, or since this worker began."""
        return self._clock() - self._heard_at.get(ps, self._made_at)

    def unanswered(self, ps: int) -> int:
        """How many heartbeats to a ps have had no answer since the last that had one."""
        return self._unanswered.get(ps, 0)

    def holder(self, link: Link) -> int:
        """Which of a link's places has the shard, as far as is known: the one of the latest term."""
        terms = [0] * len(link.places)
        terms[link.at] = link.term
        for at, (ps, _) in enumerate(link.places):
            state = self._seen.get(ps)
            for replica in state.replicas if state is not None else ():
                if replica.shard == link.index and replica.role == Role.PRIMARY.value:
                    terms[at] = max(terms[at], replica.term.number)
        return link.at if terms[link.at] == max(terms) else terms.index(max(terms))

    def is_superseded(self, link: Link) -> bool:
        """Whether another ps than the one that this worker speaks with holds the shard, in a later term."""
        return self.holder(link) != link.at

    def is_unbegun(self, link: Link, fit: int) -> bool:
        """Whether the ps that holds the shard knows nothing of this training: it was given its values, and no more."""
        state = self._seen.get(link.places[self.holder(link)][0])
        replicas = state.replicas if state is not None else ()
        return any(s.shard == link.index and s.role == Role.PRIMARY.value and s.fit < fit for s in replicas)

    def last_version(self, fit: int) -> int:
        """The earliest version at which a ps ends this training: all of them do, where it was ended early."""
        states = [state for state in self._seen.values() if state is not None and state.fit == fit]
        return min((state.last_version for state in states), default=m.UNLIMITED)

    def is_nowhere(self, link: Link) -> bool:
        """Whether every ps that may have the shard has said that it has not."""
        for ps, _ in link.places:
            state = self._seen.get(ps)
            if state is None or not has_nothing(state, link.index):
                return False
        return True


def has_nothing(state: m.JobState, shard: int) -> bool:
    """Whether a ps has no values of a shard."""
    return all(replica.shard != shard or replica.role == Role.EMPTY.value for replica in state.replicas)
