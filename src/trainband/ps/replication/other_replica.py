"""OtherReplica: the way to the ps that has the other replica of a shard, and what was heard of it."""

from __future__ import annotations

from collections.abc import Callable

from trainband.runtime import Clock
from trainband.wire import messages as m
from trainband.wire.codec import decode
from trainband.wire.transport import Connection, Timeouts

Connect = Callable[[int, Timeouts], Connection]
"""A new connection to the ps with this number."""


class OtherReplica:
    """Of one shard.

    Args:
      shard: its number.
      connect: the way to the other ps.
      timeouts: how long to wait for what.
      clock: this task's.
    """

    def __init__(self, shard: int, connect: Connect, timeouts: Timeouts, clock: Clock) -> None:
        self.timeouts = timeouts
        self.host = ""
        """Where it was when it last took an invitation."""
        self.heard_at = clock()
        """The last sign of life, by this task's clock."""
        self.leader = ("", 0)
        """Of a primary: the incarnation of its task, and the number of the stream that it has opened last."""
        self._shard = shard
        self._connect = connect
        self._clock = clock

    def heard(self) -> None:
        """It has given a sign of life."""
        self.heard_at = self._clock()

    @property
    def silent_s(self) -> float:
        """Seconds since it was heard."""
        return self._clock() - self.heard_at

    def connect(self, ps: int) -> Connection:
        """A new connection to it."""
        return self._connect(ps, self.timeouts)

    def state(self, ps: int) -> m.JobState:
        """What the other ps says of itself now.

        Raises:
          PeerError: it does not answer.
        """
        connection = self.connect(ps)
        try:
            body = connection.call(f"state/{self._shard}", timeout_s=self.timeouts.heartbeat_s)
        finally:
            connection.close()
        return decode(body, m.JobState, f"ps:{ps}")
