"""ClusterView: a worker's view of the job from its heartbeats' answers, and its decisions as an arbiter."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from trainband.cluster.identity import Identity
from trainband.ps.replication.arbiter import Arbiter
from trainband.ps.replication.failover import Role
from trainband.ps.replication.replica_places import replica_places
from trainband.ps.worker.shard_link import Link
from trainband.runtime import Runtime
from trainband.wire.messages import calls as m
from trainband.wire.messages.replication import NOBODY, ReplicaState, Term, VoteRequest, arbiter_name


class ClusterView:
    """Last known state of every ps. Any thread may read it; one per ps updates it.

    Args:
      lease_s: in which every live worker joins a new ps.
    """

    def __init__(self, identity: Identity, chief: str, runtime: Runtime, lease_s: float, ps_count: int) -> None:
        self.chief = chief
        """The worker acting as chief now."""
        self._task = identity.name
        self._known_as = arbiter_name(identity.incarnation)
        self.lost = ""
        """Why a shard's values cannot be recovered, as reported by another worker; else empty."""
        self._seen: dict[int, m.JobState | None] = {}
        self._clock = runtime.clock
        self._lease_s = lease_s
        self._ps_count = ps_count
        self._nobody_since: float | None = None
        """Since when no known ps has had the first shard."""
        self._made_at = runtime.clock()
        self._heard_at: dict[int, float] = {}
        self._unanswered: dict[int, int] = {}
        self._arbiter = Arbiter()
        self._deciding = runtime.lock()

    @property
    def is_chief(self) -> bool:
        """Whether this worker is acting as chief."""
        return self.chief == self._task

    def record_answer(self, ps: int, state: m.JobState | None, *, begun: bool) -> list[VoteRequest]:
        """Notes an answer (`None` for no answer); returns the vote requests that this worker must decide.

        `begun`: whether a training run has begun. From then on, the ps that holds the first shard determines the chief
        or, if none does, its replacement once it knows all workers.
        """
        if state is None:
            self._seen[ps] = None
            self._unanswered[ps] = self.unanswered(ps) + 1
            return []
        state = self._seen[ps] = replace(state, replicas=tuple(filter(partial(self._may_report, ps), state.replicas)))
        self._unanswered[ps] = 0
        self.record_contact(ps)
        self.lost = self.lost or (state.lost if begun else "")
        orphaned = self._is_orphaned()
        for replica in state.replicas:
            if replica.shard == 0 and (replica.role == Role.PRIMARY.value or not begun or orphaned):
                self.chief = state.chief
        vote_requests = [replica.vote_request for replica in state.replicas if replica.vote_request is not None]
        return [vote_request for vote_request in vote_requests if vote_request.arbiter == self._known_as]

    def _may_report(self, ps: int, replica: ReplicaState) -> bool:
        """Whether a ps may report this replica: no ps decides who holds another's shard."""
        asked = replica.vote_request
        in_its_own_name = replica.ps == ps and (asked is None or (asked.ps, asked.shard) == (ps, replica.shard))
        return in_its_own_name and ps in replica_places(replica.shard, self._ps_count)

    def _is_orphaned(self) -> bool:
        """Whether no known ps has had the first shard for a lease."""
        states = [state for state in self._seen.values() if state is not None]
        if not all(has_nothing(state, 0) for state in states):
            self._nobody_since = None
        elif self._nobody_since is None:
            self._nobody_since = self._clock()
        return self._nobody_since is not None and self._clock() - self._nobody_since >= self._lease_s

    def grants(self, vote_request: VoteRequest) -> bool:
        """Decides a vote request; see `Arbiter`."""
        with self._deciding:
            return self._arbiter.grants(vote_request)

    def decides(self) -> bool:
        """Whether this worker is the arbiter of a shard with two replicas while others train."""
        newest: dict[int, Term] = {}
        for state in self._seen.values():
            for replica in state.replicas if state is not None and state.live else ():
                known = newest.get(replica.shard)
                holds = replica.role in (Role.PRIMARY.value, Role.STANDBY.value)
                if holds and (known is None or known.number < replica.term.number):
                    newest[replica.shard] = replica.term
        return any(term.arbiter == self._known_as and term.standby != NOBODY for term in newest.values())

    def record_contact(self, ps: int) -> None:
        """Notes that a ps has answered a call other than a heartbeat."""
        self._heard_at[ps] = self._clock()

    def silent_s(self, ps: int) -> float:
        """Seconds since a ps last answered or this worker began."""
        return self._clock() - self._heard_at.get(ps, self._made_at)

    def unanswered(self, ps: int) -> int:
        """How many heartbeats to a ps have gone unanswered since its last answer."""
        return self._unanswered.get(ps, 0)

    def holder(self, link: Link) -> int:
        """Index of the link's place believed to hold the shard: that of the latest term."""
        terms = [0] * len(link.places)
        terms[link.at] = link.term
        for at, (ps, _) in enumerate(link.places):
            state = self._seen.get(ps)
            for replica in state.replicas if state is not None else ():
                if replica.shard == link.index and replica.role == Role.PRIMARY.value:
                    terms[at] = max(terms[at], replica.term.number)
        return link.at if terms[link.at] == max(terms) else terms.index(max(terms))

    def is_superseded(self, link: Link) -> bool:
        """Whether a ps other than the one this worker talks to holds the shard in a later term."""
        return self.holder(link) != link.at

    def is_unbegun(self, link: Link, fit: int) -> bool:
        """Whether the shard's ps does not know this training: it has its values but nothing else."""
        state = self._seen.get(link.places[self.holder(link)][0])
        replicas = state.replicas if state is not None else ()
        return any(s.shard == link.index and s.role == Role.PRIMARY.value and s.fit < fit for s in replicas)

    def last_version(self, fit: int) -> int:
        """The earliest version at which a ps ends this training; all end there if it was ended early."""
        states = [state for state in self._seen.values() if state is not None and state.fit == fit]
        return min((state.last_version for state in states), default=m.UNLIMITED)

    def is_nowhere(self, link: Link) -> bool:
        """Whether every ps that may have the shard has reported that it does not."""
        for ps, _ in link.places:
            state = self._seen.get(ps)
            if state is None or not has_nothing(state, link.index):
                return False
        return True


def has_nothing(state: m.JobState, shard: int) -> bool:
    """Whether a ps has no values of a shard."""
    return all(replica.shard != shard or replica.role == Role.EMPTY.value for replica in state.replicas)
