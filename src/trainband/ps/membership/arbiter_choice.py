"""ArbiterChoice: chooses the worker that decides who holds a shard. Called under the lock.

A worker learns it from the answers to its heartbeats: workers open connections, and nothing connects to a worker.
"""

from __future__ import annotations

from trainband.ps.membership.members import Members
from trainband.runtime import Clock
from trainband.wire.messages.replication import arbiter_name


class ArbiterChoice:
    """Chooses among the arbiters that a ps knows."""

    def __init__(self, members: Members, host: str, clock: Clock) -> None:
        self._members = members
        self._host = host
        self._clock = clock

    def choose(self, present: str, other_host: str) -> str:
        """Returns the present arbiter while it is live, else a worker, preferably on a third machine.

        `other_host`: the other replica's.
        """
        found = self._members.arbiter(present)
        if found is not None and found.live:
            return present
        live = sorted(self._members.live(), key=lambda member: member.number)
        elsewhere = [member for member in live if member.host not in (self._host, other_host)]
        return next((arbiter_name(member.incarnation) for member in (*elsewhere, *live)), present)

    def silent_s(self, arbiter: str) -> float:
        """Seconds since it was heard here; infinite if it is not in the job."""
        found = self._members.arbiter(arbiter)
        return self._clock() - max(found.heard_at, found.last_contact_at) if found is not None else float("inf")

    def name(self, arbiter: str) -> str:
        """The arbiter's task, for messages."""
        found = self._members.arbiter(arbiter)
        return found.task if found is not None else "a worker"
