"""RecordLog: the numbered records of a shard's changes, and how far the replica that takes them is.

Pure, like `failover.py`: no threads, clocks or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Follower:
    """The replica that takes a primary's records, as the primary knows it.

    Attributes:
      incarnation: of its task: another process has no records.
      is_standby: whether it may take over, so that giving it up needs a grant.
      sent: the last record sent on the present connection.
      taken: the last record that it has confirmed.
      connected: whether there is a connection.
    """

    incarnation: str
    is_standby: bool = False
    sent: int = 0
    confirmed: int = 0
    connected: bool = True


@dataclass(slots=True)
class RecordLog:
    """The log of one replica. It keeps only the records that its follower, if any, has not confirmed.

    Attributes:
      position: the number of the last record, appended or taken.
      follower: takes a primary's records.
    """

    position: int = 0
    follower: Follower | None = None
    _records: deque[tuple[int, Any, Any]] = field(default_factory=deque)

    def append(self, record: Any, blocks: Any = ()) -> int:
        """Adds the record of a change and the blocks sent with it; returns its number."""
        self.position += 1
        if self.follower is not None:
            self._records.append((self.position, record, blocks))
        return self.position

    def copy_blocks(self, owned: Callable[[Any, Any], Any]) -> None:
        """Replaces the blocks of each record by `owned(record, blocks)`, because borrowed memory will go."""
        self._records = deque((number, record, owned(record, blocks)) for number, record, blocks in self._records)

    def blocks(self) -> list[Any]:
        """The blocks of each record that it keeps."""
        return [blocks for _, _, blocks in self._records]

    @property
    def behind(self) -> int:
        """How many records the other replica has not confirmed."""
        return self.position - max(0, self.follower.confirmed) if self.follower is not None else 0

    @property
    def lacks_standby(self) -> bool:
        """Whether this term's standby is disconnected, so that nothing is acknowledged."""
        return self.follower is not None and self.follower.is_standby and not self.follower.connected

    def start_install(self, incarnation: str) -> int:
        """Notes that the other replica is sent a snapshot; returns the number of the last record in it."""
        self._records.clear()
        self.follower = Follower(incarnation, sent=self.position, confirmed=-1)
        return self.position

    def resume(self, position: int, incarnation: str) -> int | None:
        """Reconnects the follower; returns the last record that it has, `None` if it cannot continue from there.

        Args:
          position: the last record that it reports.
          incarnation: of its task: a new process must start from scratch.
        """
        follower = self.follower
        if follower is None or follower.incarnation != incarnation:
            return None
        position = max(position, follower.confirmed)  # it may have confirmed more since it gave that answer
        first = self._records[0][0] if self._records else self.position + 1
        if not first - 1 <= position <= self.position:
            return None
        follower.connected, follower.sent = True, position
        return position

    def unsent(self) -> tuple[int, list[tuple[Any, Any]]]:
        """The records not sent to the other replica: the first number, and (record, blocks) each."""
        follower = self.follower
        if follower is None:
            return self.position + 1, []
        first = follower.sent + 1
        records = [(record, blocks) for number, record, blocks in self._records if number >= first]
        follower.sent = self.position
        return first, records

    def confirm(self, follower: Follower, position: int) -> None:
        """Drops the records up to one that the follower has confirmed."""
        follower.confirmed = position
        while self._records and self._records[0][0] <= position:
            self._records.popleft()

    def lost(self) -> None:
        """Notes a broken connection to the other replica, and forgets it if it may not take over."""
        if self.follower is None:
            return
        self.follower.connected = False
        if not self.follower.is_standby:
            self.forget()

    def forget(self) -> None:
        """Drops the follower and its records."""
        self.follower = None
        self._records.clear()
