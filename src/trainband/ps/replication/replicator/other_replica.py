"""OtherReplica: connects to the ps with the other replica of a shard, and keeps when it was heard."""

from __future__ import annotations

from collections.abc import Callable

from trainband.ps.replication.replicator.state import ReplicatorState
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode
from trainband.wire.transport import Connection, Timeouts

Connect = Callable[[int, Timeouts], Connection]
"""A new connection to the ps with this number."""


class OtherReplica:
    """The other replica of one shard."""

    def __init__(self, state: ReplicatorState, connect: Connect) -> None:
        self.timeouts = state.timeouts
        self.host = ""
        """Its host when it last accepted an invitation."""
        self.heard_at = state.clock()
        """When it last gave a sign of life, by this task's clock."""
        self.primary = ("", 0)
        """If the other replica is a primary: its task's incarnation, and the number of its last stream."""
        self._shard = state.replica.number
        self._connect = connect
        self._clock = state.clock

    def record_contact(self) -> None:
        """Records a sign of life."""
        self.heard_at = self._clock()

    @property
    def silent_s(self) -> float:
        """Seconds since it was heard."""
        return self._clock() - self.heard_at

    def connect(self, ps: int) -> Connection:
        """A new connection to it."""
        return self._connect(ps, self.timeouts)

    def state(self, ps: int) -> m.JobState:
        """The other ps's present state.

        Raises:
          PeerError: it does not answer.
        """
        connection = self.connect(ps)
        try:
            body = connection.call(f"state/{self._shard}", timeout_s=self.timeouts.heartbeat_s)
        finally:
            connection.close()
        return decode(body, m.JobState, f"ps:{ps}")
