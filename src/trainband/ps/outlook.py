"""Outlook: what a worker knows of the job from the answers to its heartbeats, and what it decides as an arbiter."""

from __future__ import annotations

from trainband.ps.link import Link
from trainband.ps.succession import Arbiter, Role
from trainband.runtime import Runtime
from trainband.wire import messages as m
from trainband.wire.replication import NOBODY, Petition, Reign


class Outlook:
    """Every ps as it was last heard. Any thread may ask; each ps has one that notes.

    Args:
      incarnation: of this worker.
      chief: the cluster's.
      runtime: this task's.
    """

    def __init__(self, incarnation: str, chief: str, runtime: Runtime) -> None:
        self.chief = chief
        """The worker that has the chief's duties now."""
        self._incarnation = incarnation
        self._seen: dict[int, m.JobState | None] = {}
        self._clock = runtime.clock
        self._made_at = runtime.clock()
        self._heard_at: dict[int, float] = {}
        self._unanswered: dict[int, int] = {}
        self._arbiter = Arbiter()
        self._deciding = runtime.lock()

    def note(self, ps: int, state: m.JobState | None, *, begun: bool) -> list[Petition]:
        """Notes an answer, `None` where there was none; returns the petitions that this worker must decide.

        `begun`: whether a training has begun. From then on, who the chief is the ps knows that holds the first shard.
        """
        self._seen[ps] = state
        if state is None:
            self._unanswered[ps] = self.unanswered(ps) + 1
            return []
        self._unanswered[ps] = 0
        self.heard(ps)
        for seat in state.seats:
            if seat.shard == 0 and (seat.role == Role.PRIMARY.value or not begun):
                self.chief = state.chief
        petitions = [seat.petition for seat in state.seats if seat.petition is not None]
        return [petition for petition in petitions if petition.arbiter == self._incarnation]

    def grants(self, petition: Petition) -> bool:
        """Decides a petition, see `Arbiter`."""
        with self._deciding:
            return self._arbiter.grants(petition)

    def decides(self) -> bool:
        """Whether two seats of a shard have only this worker to decide which of them goes on, while others train."""
        newest: dict[int, Reign] = {}
        for state in self._seen.values():
            for seat in state.seats if state is not None and state.live else ():
                known = newest.get(seat.shard)
                holds = seat.role in (Role.PRIMARY.value, Role.STANDBY.value)
                if holds and (known is None or known.epoch < seat.reign.epoch):
                    newest[seat.shard] = seat.reign
        return any(reign.arbiter == self._incarnation and reign.standby != NOBODY for reign in newest.values())

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
        """Which of a link's places has the shard, as far as is known: the one of the latest epoch."""
        epochs = [0] * len(link.places)
        epochs[link.at] = link.epoch
        for at, (ps, _) in enumerate(link.places):
            state = self._seen.get(ps)
            for seat in state.seats if state is not None else ():
                if seat.shard == link.index and seat.role == Role.PRIMARY.value:
                    epochs[at] = max(epochs[at], seat.reign.epoch)
        return link.at if epochs[link.at] == max(epochs) else epochs.index(max(epochs))

    def is_superseded(self, link: Link) -> bool:
        """Whether another ps than the one that this worker speaks with holds the shard, in a later epoch."""
        return self.holder(link) != link.at

    def is_unbegun(self, link: Link, fit: int) -> bool:
        """Whether the ps that holds the shard knows nothing of this training: it was given its values, and no more."""
        state = self._seen.get(link.places[self.holder(link)][0])
        seats = state.seats if state is not None else ()
        return any(s.shard == link.index and s.role == Role.PRIMARY.value and s.fit < fit for s in seats)

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
    return all(seat.shard != shard or seat.role == Role.EMPTY.value for seat in state.seats)
