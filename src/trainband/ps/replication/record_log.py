"""RecordLog: the numbered records of what has changed a shard, and what the replica that takes them has of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Follower:
    """What a primary knows of the replica that takes its records.

    Attributes:
      incarnation: of its task: another process has nothing of what this one had.
      is_standby: whether it may succeed, so that it can be given up only with a grant.
      sent: the last record that was sent on the present connection.
      taken: the last one that it has confirmed.
      connected: whether there is a connection.
    """

    incarnation: str
    is_standby: bool = False
    sent: int = 0
    taken: int = 0
    connected: bool = True


@dataclass(slots=True)
class RecordLog:
    """Of one replica. It keeps what its follower has not confirmed; where there is none, it keeps nothing.

    Attributes:
      position: the number of the last record, appended or taken.
      follower: of a primary: who takes the records.
    """

    position: int = 0
    follower: Follower | None = None
    _kept: deque[tuple[int, Any, Any]] = field(default_factory=deque)

    def append(self, record: Any, burden: Any = ()) -> int:
        """Notes a record of what has changed, and what travels with it; returns its number."""
        self.position += 1
        if self.follower is not None:
            self._kept.append((self.position, record, burden))
        return self.position

    def keep(self, owned: Callable[[Any, Any], Any]) -> None:
        """Puts `owned(record, burden)` in place of each burden in the log: what it borrows will go."""
        self._kept = deque((number, record, owned(record, burden)) for number, record, burden in self._kept)

    @property
    def behind(self) -> int:
        """Records that the other replica has not confirmed."""
        return self.position - max(0, self.follower.taken) if self.follower is not None else 0

    @property
    def lacks_standby(self) -> bool:
        """Whether the standby of this term is not connected, so that nothing is acknowledged."""
        return self.follower is not None and self.follower.is_standby and not self.follower.connected

    def begin_install(self, incarnation: str) -> int:
        """The other replica is sent everything as it now is; returns the number of the last record in it."""
        self._kept.clear()
        self.follower = Follower(incarnation, sent=self.position, taken=-1)
        return self.position

    def resume(self, position: int, incarnation: str) -> int | None:
        """The follower is reached again: the last record that it has, `None` where its records cannot continue it.

        Args:
          position: what it says that it has.
          incarnation: of its task: another process than the one that followed has to begin anew.
        """
        follower = self.follower
        if follower is None or follower.incarnation != incarnation:
            return None
        position = max(position, follower.taken)  # it may have confirmed more since it gave that answer
        first = self._kept[0][0] if self._kept else self.position + 1
        if not first - 1 <= position <= self.position:
            return None
        follower.connected, follower.sent = True, position
        return position

    def unsent(self) -> tuple[int, list[tuple[Any, Any]]]:
        """What has not been sent to the other replica: the first number, and (record, burden) each."""
        follower = self.follower
        if follower is None:
            return self.position + 1, []
        first = follower.sent + 1
        records = [(record, burden) for number, record, burden in self._kept if number >= first]
        follower.sent = self.position
        return first, records

    def confirm(self, follower: Follower, position: int) -> None:
        """The follower has everything up to a record, which need not be kept any longer."""
        follower.taken = position
        while self._kept and self._kept[0][0] <= position:
            self._kept.popleft()

    def lost(self) -> None:
        """The connection with the other replica is broken. One that may not succeed is forgotten."""
        if self.follower is None:
            return
        self.follower.connected = False
        if not self.follower.is_standby:
            self.forget()

    def forget(self) -> None:
        """Nobody takes the records any more."""
        self.follower = None
        self._kept.clear()
