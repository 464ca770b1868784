"""Succession: who holds a shard, and what its standby has of it. A pure state machine, no threads, clocks or sockets.

With `ParameterServer(replicas=1)` each shard has two *seats*, on two ps tasks. One is the primary: workers push to
it. Whatever changes the shard goes into a log of records, in order; the standby takes them in the same order and so
comes to the same state. Nothing is acknowledged to a worker before the standby has its record.

Who holds the shard is its *reign*, numbered by an epoch: primary, standby, and an arbiter, which is one process of one
worker. A seat that has lost the other asks the arbiter for the next epoch, and the arbiter gives each epoch to one seat
only (`Arbiter`). So a primary goes on alone, or a standby takes over, but never both; who was cut off finds at its next
word that its epoch is over (the fence). No arbiter is needed where the other seat comes back as a new process: then the
old one is dead.

A shard that was taken over goes home again: its primary hands it over to its standby, by a record of the log that
names the next reign. From then on it takes nothing, and is in doubt until it knows that the other has the record. If
that one is lost meanwhile, it asks for an epoch on the condition that nobody was granted one after the last in which
both were sure.

Source: primary-backup replication with a view service, Budhiraja et al. 1993, The Primary-Backup Approach; here the
view service is a worker, named anew by the two seats together whenever it goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainband.wire.replication import NOBODY, Petition, Reign


class Role(Enum):
    """What a seat is."""

    EMPTY = "empty"
    """It has no values that count."""
    LEARNER = "learner"
    """It takes the records, but is in no reign: it may not succeed."""
    STANDBY = "standby"
    PRIMARY = "primary"


class Fenced(Exception):
    """The seat's epoch is over: another seat holds the shard."""


class Arbiter:
    """A worker's memory of what it has granted: each epoch of a lineage to one seat."""

    def __init__(self) -> None:
        self._granted: dict[str, tuple[int, int]] = {}

    def grants(self, petition: Petition) -> bool:
        """Whether the seat may hold its shard alone from now on. Asked again, it answers the same."""
        epoch, seat = self._granted.get(petition.lineage, (0, NOBODY))
        if petition.epoch > epoch and not 0 < petition.unless_after < epoch:
            self._granted[petition.lineage] = (petition.epoch, petition.seat)
            return True
        return petition.epoch == epoch and petition.seat == seat


@dataclass(slots=True)
class Pupil:
    """What a primary knows of the seat that takes its records.

    Attributes:
      incarnation: of its task: another process has nothing of what this one had.
      in_reign: whether it may succeed, so that it can be given up only with a grant.
      sent: the last record that was sent on the present connection.
      taken: the last one that it has confirmed.
      connected: whether there is a connection.
    """

    incarnation: str
    in_reign: bool = False
    sent: int = 0
    taken: int = 0
    connected: bool = True


@dataclass(slots=True)
class Succession:
    """One seat of one shard.

    Attributes:
      me: the number of this ps.
      other: that of the ps with the other seat; NOBODY where the shard has no standby.
      lineage: random, made with the shard's first values; a seat of another lineage holds another shard.
      position: the number of the last record, appended or taken.
      petition: the epoch that this seat asks for; 0 for none.
    """

    shard: int
    me: int
    other: int = NOBODY
    role: Role = Role.EMPTY
    reign: Reign = field(default_factory=Reign)
    lineage: str = ""
    position: int = 0
    petition: int = 0
    pupil: Pupil | None = None
    _log: deque[tuple[int, Any, Any]] = field(default_factory=deque)
    _unconfirmed: tuple[int, Reign] | None = None

    # --- of every seat

    @property
    def in_doubt(self) -> bool:
        """Whether it has handed the shard over, and does not know that the other seat has taken it."""
        return self.role is Role.PRIMARY and self.reign.primary != self.me

    @property
    def holds(self) -> bool:
        """Whether this seat takes what is to change the shard."""
        return self.role is Role.PRIMARY and not self.in_doubt

    @property
    def known_as(self) -> Role:
        """What the others should take this seat for."""
        return Role.STANDBY if self.in_doubt else self.role

    def asks(self) -> Petition | None:
        """What the arbiter should read."""
        if not self.petition:
            return None
        unless_after = self._unconfirmed[1].epoch if self.in_doubt and self._unconfirmed is not None else 0
        return Petition(self.shard, self.lineage, self.petition, self.me, self.reign.arbiter, unless_after)

    def crown(self, lineage: str) -> None:
        """The first values are here: this seat is the first primary of a new lineage."""
        self.role, self.lineage, self.position = Role.PRIMARY, lineage, 0
        self.reign = Reign(1, self.me)
        self._end_petition()
        self.pupil = None
        self._log.clear()

    def granted(self, epoch: int, yes: bool) -> bool:
        """The arbiter's word on this seat's petition; returns whether the seat has come to hold the shard by it."""
        if not self.petition or epoch != self.petition:
            return False
        if yes:
            return self.reign_alone()
        self.petition = 0  # what this seat has counts until the other one says itself that it holds the shard
        return False

    def reign_alone(self) -> bool:
        """Holds the shard from now on without another, because that one is dead or given up.

        Returns whether this seat did not hold it before.
        """
        held, self.role = self.holds, Role.PRIMARY
        self.reign = Reign(max(self.reign.epoch + 1, self.petition), self.me, NOBODY, self.reign.arbiter)
        self._end_petition()
        self.pupil = None
        self._log.clear()
        return not held

    def abdicate(self) -> None:
        """Another seat holds the shard: what this one has does not count any more."""
        self.role = Role.EMPTY
        self._end_petition()
        self.pupil = None
        self._log.clear()

    def ask(self) -> None:
        """Petitions the arbiter, because the other seat is silent.

        Not for the next epoch: the primary may have begun that to name another arbiter, and the standby not know of it.
        What is asked for stands until it is granted or refused, or the two have begun another reign together: one that
        was granted and then not used would keep the other seat from succeeding.
        """
        if self.reign.arbiter and not self._arbiter_changes:
            self.petition = self.reign.epoch + 2

    def _end_petition(self) -> None:
        self.petition, self._unconfirmed = 0, None

    # --- of the primary

    def append(self, record: Any, burden: Any = ()) -> int:
        """Notes a record of what has changed, and what travels with it; returns its number."""
        self.position += 1
        if self.pupil is not None:
            self._log.append((self.position, record, burden))
        return self.position

    def settled(self, number: int) -> bool:
        """Whether everything up to this record may be acknowledged to workers.

        Raises:
          Fenced: this seat is not the primary.
        """
        if self.role is not Role.PRIMARY:
            raise Fenced
        return self.pupil is None or self.pupil.taken >= number

    @property
    def behind(self) -> int:
        """Records that the other seat has not confirmed."""
        return self.position - max(0, self.pupil.taken) if self.pupil is not None else 0

    def keep(self, owned: Callable[[Any, Any], Any]) -> None:
        """Puts `owned(record, burden)` in place of each burden in the log: what it borrows will go."""
        self._log = deque((number, record, owned(record, burden)) for number, record, burden in self._log)

    @property
    def secure(self) -> bool:
        """Whether there is a standby that knows that it is one: nothing is lost if this ps dies now."""
        return self.pupil is not None and self.pupil.in_reign and self.pupil.connected and self._unconfirmed is None

    @property
    def bereft(self) -> bool:
        """Whether the standby of this reign is not connected, so that nothing is acknowledged."""
        return self.pupil is not None and self.pupil.in_reign and not self.pupil.connected

    def meet(self, role: Role, lineage: str, epoch: int, position: int, incarnation: str) -> int | None:
        """The other seat is reached: where its records go on, `None` where it must be taught everything.

        Raises:
          Fenced: the other holds the shard.
        """
        same = lineage == self.lineage
        if same and role is Role.PRIMARY and epoch > self.reign.epoch:
            self.abdicate()
            raise Fenced
        if same and role is Role.PRIMARY and self.in_doubt and epoch == self.reign.epoch:
            self._step_down()
            return position
        pupil = self.pupil
        if pupil is not None and pupil.incarnation == incarnation and same and role in (Role.STANDBY, Role.LEARNER):
            position = max(position, pupil.taken)  # it may have confirmed more since it gave that answer
            first = self._log[0][0] if self._log else self.position + 1
            if first - 1 <= position <= self.position:
                pupil.connected, pupil.sent = True, position
                return position
        if pupil is not None and pupil.in_reign:
            if same and pupil.incarnation == incarnation and role is not Role.EMPTY:
                raise RuntimeError("a standby has records that its primary has not")
            self.reign_alone()  # what it was is dead: it is another process, or says that it has nothing
        self.pupil = None
        self._log.clear()
        return None

    def teach(self, incarnation: str) -> int:
        """The other seat is sent everything as it now is; returns the number of the last record in it."""
        self._log.clear()
        self.pupil = Pupil(incarnation, sent=self.position, taken=-1)
        return self.position

    def unsent(self) -> tuple[int, list[tuple[Any, Any]]]:
        """What the other seat has not been sent, (record, burden) each, and its first number; it counts as sent now."""
        pupil = self.pupil
        if pupil is None:
            return self.position + 1, []
        first = pupil.sent + 1
        records = [(record, burden) for number, record, burden in self._log if number >= first]
        pupil.sent = self.position
        return first, records

    def hand_over(self) -> None:
        """Has the standby hold the shard after the next record, and this seat be its standby.

        Raises:
          RuntimeError: there is none that knows that it is the standby.
        """
        if not (self.holds and self.secure):
            raise RuntimeError("a shard can be handed over to a standby that knows that it is one")
        self._proclaim(Reign(self.reign.epoch + 1, self.other, self.me, self.reign.arbiter))

    def _step_down(self) -> None:
        """The other seat holds the shard, which this one has handed over.

        What it asked for in doubt stands, as a standby's: it may have been granted.
        """
        self.role, self.pupil, self._unconfirmed = Role.STANDBY, None, None
        self._log.clear()

    def taken(self, position: int, arbiter: str) -> None:
        """The other seat has confirmed everything up to a record.

        A learner comes into the reign by it, and one that the shard was handed over to holds it.
        `arbiter` is who shall decide from then on.
        """
        pupil = self.pupil
        if pupil is None or position < pupil.taken:
            return
        pupil.taken = position
        while self._log and self._log[0][0] <= position:
            self._log.popleft()
        if self._unconfirmed is not None and self._unconfirmed[0] <= position:
            if self.in_doubt:
                self._step_down()
                return
            self._unconfirmed = None
        if not pupil.in_reign:
            self._proclaim(Reign(self.reign.epoch + 1, self.me, self.other, arbiter))
            pupil.in_reign = True

    def name_arbiter(self, arbiter: str) -> None:
        """Has another worker decide from now on, once the standby knows of it."""
        if self.role is not Role.PRIMARY or arbiter == self.reign.arbiter or self.bereft or self._unconfirmed:
            return
        if self.pupil is None:
            self.reign = Reign(self.reign.epoch, self.me, NOBODY, arbiter)
        elif self.pupil.in_reign:
            self._proclaim(Reign(self.reign.epoch + 1, self.me, self.other, arbiter))

    def _proclaim(self, reign: Reign) -> None:
        self.petition = 0
        number = self.append(reign)
        self._unconfirmed = (number, self.reign)
        self.reign = reign

    @property
    def _arbiter_changes(self) -> bool:
        """Whether the standby may not know yet that another arbiter was named: it may ask the old one."""
        unconfirmed = self._unconfirmed
        return self.holds and unconfirmed is not None and unconfirmed[1].standby != NOBODY

    def refused(self, epoch: int) -> None:
        """The other seat takes nothing. `epoch`: in which it holds the shard; 0 where it does not.

        Raises:
          Fenced: it holds the shard in a later epoch than this seat.
        """
        if self.role is Role.PRIMARY and epoch > self.reign.epoch:
            self.abdicate()
            raise Fenced
        self.lost()

    def lost(self) -> None:
        """The connection with the other seat is broken. One that may not succeed is forgotten."""
        if self.pupil is None:
            return
        self.pupil.connected = False
        if not self.pupil.in_reign:
            self.pupil = None
            self._log.clear()

    # --- of the standby

    def may_learn(self, lineage: str, epoch: int) -> bool:
        """Whether a primary of this epoch may teach this seat, which may have held the shard itself before."""
        if lineage == self.lineage:
            return epoch > self.reign.epoch or (epoch == self.reign.epoch and self.role is not Role.PRIMARY)
        return self.role is not Role.PRIMARY

    def learn(self, lineage: str, reign: Reign, position: int) -> None:
        """Everything was taken over from the primary, as it was after this record."""
        self.role, self.lineage, self.reign, self.position = Role.LEARNER, lineage, reign, position
        self._end_petition()

    def take(self, lineage: str, epoch: int, first: int, records: Sequence[Any], sender: str = "") -> int:
        """Takes the records, numbered from `first`; returns how many of them at the beginning had been taken before.

        The last of them may make this seat the primary. `sender`: the incarnation of the one before.

        Raises:
          Fenced: the sender's epoch is over, or it serves another shard.
          ValueError: records before them are missing.
        """
        if self.in_doubt and lineage == self.lineage and epoch >= self.reign.epoch:
            self._step_down()  # the other has taken what this seat has handed over
        if self.role not in (Role.LEARNER, Role.STANDBY) or lineage != self.lineage or epoch < self.reign.epoch:
            raise Fenced
        if first > self.position + 1:
            raise ValueError(f"records {self.position + 1} to {first - 1} are missing")
        old = min(len(records), self.position + 1 - first)
        self.position += len(records) - old
        for record in records[old:]:
            if isinstance(record, Reign):
                self.reign, self.petition = record, 0
                self.role = Role.STANDBY if record.standby == self.me else Role.LEARNER
                if record.primary == self.me:
                    self.role = Role.PRIMARY
                    # It has everything, and is waited for until it says so itself.
                    self.pupil = Pupil(sender, in_reign=True, sent=self.position, taken=self.position, connected=False)
        return old
