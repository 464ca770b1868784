"""PeerHeartbeats: the last heartbeats of the other processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainband.runtime.formatting import MOST_OF_A_LINE, one_line
from trainband.spmd.process_activity import Wait


class Heartbeat(NamedTuple):
    """A process's report of itself.

    Attributes:
      number: of this heartbeat.
      step: the training that it is in, and its call.
      waits: whether it is in an exchange with the others, or computes for one.
      doing: what else it does, as text.
      wait: the value that it waits for, if any.
    """

    number: int
    step: tuple[int, int]
    waits: bool
    doing: str
    wait: Wait | None

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        number, (training, call), waits, doing, wait = json.loads(text)
        heard = None
        if wait is not None:
            key, about, of = wait
            heard = Wait(key, one_line(about, MOST_OF_A_LINE), of)
        return cls(number, (training, call), waits, one_line(doing, MOST_OF_A_LINE), heard)


@dataclass(slots=True)
class Peer:
    """The known state of another process.

    Attributes:
      said: its last heartbeat.
      since: when that came, on this process's clock.
      moved_at: when its report last changed.
    """

    said: Heartbeat
    since: float
    moved_at: float


class PeerHeartbeats(dict[int, Peer]):
    """Peers by process index. One thread notes them."""

    def record(self, index: int, said: Heartbeat, now: float) -> None:
        """Notes a heartbeat if it differs from the last."""
        known = self.get(index)
        if known is None or known.said != said:
            moved = known is None or known.said[1:] != said[1:]
            self[index] = Peer(said, now, now if moved or known is None else known.moved_at)

    def are_doing(self, indices: Sequence[int]) -> bool:
        """Whether all of these are busy with something that this process waits longer for."""
        peers = [self.get(index) for index in indices]
        return all(peer is not None and peer.said.doing for peer in peers)
