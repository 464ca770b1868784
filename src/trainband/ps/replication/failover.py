"""Failover: who holds a shard, and how far its standby is. A pure state machine: no threads, clocks or sockets.

With `ParameterServer(standbys=1)` each shard has two *replicas*, on two ps tasks. One is the primary: workers push to
it. Every change of the shard goes into a log of records, in order; the standby applies them in the same order and so
reaches the same state. Nothing is acknowledged to a worker before the standby has its record.

A numbered *term* names who holds the shard: the primary, the standby, and an arbiter, which is one process of one
worker. A replica that has lost the other asks the arbiter for the next term, and the arbiter votes for one replica in
each term (`arbiter.py`). So either the primary continues alone or the standby takes over, never both. A replica that
was cut off learns from its next message that its term is over (fencing). No vote is needed if the other replica
comes back as a new process, because the old one is then dead.

A shard that was taken over is returned (failback): its primary hands it over to the standby with a log record that
names the next term. From then on the old primary takes nothing, and is in doubt until it knows that the other has the
record. If the other is lost meanwhile, the old primary asks for a term on the condition that none was granted after the
last one in which both were sure.

Source: primary-backup replication with a view service, Budhiraja et al. 1993, The Primary-Backup Approach; here the
view service is a worker, and the two replicas together name another one whenever it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainband.ps.replication.record_log import Follower, RecordLog
from trainband.wire.messages.replication import NOBODY, Term, VoteRequest


class Role(Enum):
    """The role of a replica."""

    EMPTY = "empty"
    """It has no values that count."""
    LEARNER = "learner"
    """It takes the records, but no term names it: it may not take over."""
    STANDBY = "standby"
    PRIMARY = "primary"


class Fenced(Exception):
    """The replica's term is over: another replica holds the shard."""


@dataclass(slots=True)
class Failover:
    """One replica of one shard.

    Attributes:
      me: the number of this ps.
      other: that of the ps with the other replica, if the shard has a standby.
      lineage: random, made with the shard's first values; a replica of another lineage holds another shard.
      log: the records of the shard's changes, and the replica that takes them.
      vote_request: the term that this replica asks for; 0 for none.
    """

    shard: int
    me: int
    other: int = NOBODY
    role: Role = Role.EMPTY
    term: Term = field(default_factory=Term)
    lineage: str = ""
    vote_request: int = 0
    log: RecordLog = field(default_factory=RecordLog)
    _unconfirmed: tuple[int, Term] | None = None

    @property
    def position(self) -> int:
        """The number of the last record, appended or taken."""
        return self.log.position

    @property
    def in_doubt(self) -> bool:
        """Whether it has handed the shard over but does not know whether the other replica has taken it."""
        return self.role is Role.PRIMARY and self.term.primary != self.me

    @property
    def holds(self) -> bool:
        """Whether this replica accepts changes of the shard."""
        return self.role is Role.PRIMARY and not self.in_doubt

    @property
    def known_as(self) -> Role:
        """The role that others should see."""
        return Role.STANDBY if self.in_doubt else self.role

    def asks(self) -> VoteRequest | None:
        """The request for the arbiter, if any."""
        if not self.vote_request:
            return None
        unless_after = self._unconfirmed[1].number if self.in_doubt and self._unconfirmed is not None else 0
        return VoteRequest(self.shard, self.lineage, self.vote_request, self.me, self.term.arbiter, unless_after)

    def bootstrap(self, lineage: str) -> None:
        """Makes this replica the first primary of a new lineage, as it has the first values."""
        self.role, self.lineage, self.log.position = Role.PRIMARY, lineage, 0
        self.term = Term(1, self.me)
        self._end_vote_request()
        self.log.forget()

    def granted(self, term: int, yes: bool) -> bool:
        """Takes the arbiter's vote; returns whether this replica now holds the shard because of it."""
        if not self.vote_request or term != self.vote_request:
            return False
        if yes:
            return self.lead_alone()
        self.vote_request = 0  # this replica's values count until the other one reports that it holds the shard
        return False

    def lead_alone(self) -> bool:
        """Holds the shard alone from now on, because the other replica is dead or given up.

        Returns whether this replica did not hold it before.
        """
        held, self.role = self.holds, Role.PRIMARY
        self.term = Term(max(self.term.number + 1, self.vote_request), self.me, NOBODY, self.term.arbiter)
        self._end_vote_request()
        self.log.forget()
        return not held

    def step_down(self) -> None:
        """Gives up this replica's values: another replica holds the shard."""
        self.role = Role.EMPTY
        self._end_vote_request()
        self.log.forget()

    def ask(self) -> None:
        """Asks for the arbiter's vote, because the other replica is silent.

        It skips a term: the primary may have begun the next one to name another arbiter, unknown to the standby.
        The request stands until it is granted or refused, or the two have begun another term together: a term that
        was granted and then not used would keep the other replica from taking over.
        """
        if self.term.arbiter and not self._arbiter_changes:
            self.vote_request = self.term.number + 2

    def _end_vote_request(self) -> None:
        self.vote_request, self._unconfirmed = 0, None

    def settled(self, number: int) -> bool:
        """Whether everything up to this record may be acknowledged to workers.

        Raises:
          Fenced: this replica is not the primary.
        """
        if self.role is not Role.PRIMARY:
            raise Fenced
        return self.log.follower is None or self.log.follower.confirmed >= number

    @property
    def secure(self) -> bool:
        """Whether there is a standby that knows its role: nothing is lost if this ps dies now."""
        return (
            self.log.follower is not None
            and self.log.follower.is_standby
            and self.log.follower.connected
            and self._unconfirmed is None
        )

    def meet(self, role: Role, lineage: str, term: int, position: int, incarnation: str) -> int | None:
        """Meets the other replica; returns the last record that it has, `None` if it needs a snapshot.

        Raises:
          Fenced: the other holds the shard.
        """
        same = lineage == self.lineage
        if same and role is Role.PRIMARY and term > self.term.number:
            self.step_down()
            raise Fenced
        if same and role is Role.PRIMARY and self.in_doubt and term == self.term.number:
            self._become_standby()
            return position
        follower = self.log.follower
        at = self.log.resume(position, incarnation) if same and role in (Role.STANDBY, Role.LEARNER) else None
        if at is not None:
            return at
        if follower is not None and follower.is_standby:
            if same and follower.incarnation == incarnation and role is not Role.EMPTY:
                raise RuntimeError("a standby has records that its primary has not")
            self.lead_alone()  # the standby is dead: this is another process, or it reports that it is empty
        self.log.forget()
        return None

    def fail_back(self) -> None:
        """Hands the shard to the standby with the next record; this replica becomes its standby.

        Raises:
          RuntimeError: no standby knows its role.
        """
        if not (self.holds and self.secure):
            raise RuntimeError("a shard can only be handed over to a standby that knows its role")
        self._proclaim(Term(self.term.number + 1, self.other, self.me, self.term.arbiter))

    def _become_standby(self) -> None:
        """Becomes the standby of the replica that has taken the shard handed over.

        A request made in doubt stands, as a standby's: it may have been granted.
        """
        self.role, self._unconfirmed = Role.STANDBY, None
        self.log.forget()

    def confirmed(self, position: int, arbiter: str) -> None:
        """Records that the other replica has confirmed everything up to a record.

        This makes a learner the standby, and a replica that was handed the shard its primary.
        `arbiter` decides from then on.
        """
        follower = self.log.follower
        if follower is None or position < follower.confirmed:
            return
        self.log.confirm(follower, position)
        if self._unconfirmed is not None and self._unconfirmed[0] <= position:
            if self.in_doubt:
                self._become_standby()
                return
            self._unconfirmed = None
        if not follower.is_standby:
            self._proclaim(Term(self.term.number + 1, self.me, self.other, arbiter))
            follower.is_standby = True

    def name_arbiter(self, arbiter: str) -> None:
        """Names another arbiter, which decides once the standby knows it."""
        if self.role is not Role.PRIMARY or arbiter == self.term.arbiter or self.log.lacks_standby or self._unconfirmed:
            return
        if self.log.follower is None:
            self.term = Term(self.term.number, self.me, NOBODY, arbiter)
        elif self.log.follower.is_standby:
            self._proclaim(Term(self.term.number + 1, self.me, self.other, arbiter))

    def _proclaim(self, term: Term) -> None:
        self.vote_request = 0
        number = self.log.append(term)
        self._unconfirmed = (number, self.term)
        self.term = term

    @property
    def _arbiter_changes(self) -> bool:
        """Whether the standby may not know of a new arbiter yet and so may ask the old one."""
        unconfirmed = self._unconfirmed
        return self.holds and unconfirmed is not None and unconfirmed[1].standby != NOBODY

    def refused(self, term: int) -> None:
        """Records that the other replica refuses records. `term`: in which it holds the shard; 0 if it does not.

        Raises:
          Fenced: it holds the shard in a later term than this replica.
        """
        if self.role is Role.PRIMARY and term > self.term.number:
            self.step_down()
            raise Fenced
        self.log.lost()

    def may_install(self, lineage: str, term: int) -> bool:
        """Whether this replica, which may have held the shard itself, accepts a snapshot from this term's primary."""
        if lineage == self.lineage:
            return term > self.term.number or (term == self.term.number and self.role is not Role.PRIMARY)
        return self.role is not Role.PRIMARY

    def install_snapshot(self, lineage: str, term: Term, position: int) -> None:
        """Records that the primary's snapshot, as it was after this record, was installed."""
        self.role, self.lineage, self.term, self.log.position = Role.LEARNER, lineage, term, position
        self._end_vote_request()

    def receive(self, lineage: str, term: int, first: int, records: Sequence[Any], sender: str = "") -> int:
        """Takes records numbered from `first`; returns how many at the beginning had been taken before.

        The last of them may make this replica the primary. `sender`: the incarnation of the one before.

        Raises:
          Fenced: the sender's term is over, or it serves another shard.
          ValueError: records before them are missing.
        """
        if self.in_doubt and lineage == self.lineage and term >= self.term.number:
            self._become_standby()  # the other has taken the shard
        if self.role not in (Role.LEARNER, Role.STANDBY) or lineage != self.lineage or term < self.term.number:
            raise Fenced
        if first > self.position + 1:
            raise ValueError(f"records {self.position + 1} to {first - 1} are missing")
        old = min(len(records), self.position + 1 - first)
        self.log.position += len(records) - old
        for record in records[old:]:
            if isinstance(record, Term):
                self.term, self.vote_request = record, 0
                self.role = Role.STANDBY if record.standby == self.me else Role.LEARNER
                if record.primary == self.me:
                    self.role = Role.PRIMARY
                    # It has everything; wait for it until it reports so itself.
                    self.log.follower = Follower(
                        sender, is_standby=True, sent=self.position, confirmed=self.position, connected=False
                    )
        return old
