"""Arbiter: the terms that a worker has granted. Pure: no threads, clocks or sockets."""

from __future__ import annotations

from trainband.wire.messages.replication import NOBODY, VoteRequest


class Arbiter:
    """A worker's memory of what it has granted: each term of a lineage to one replica."""

    def __init__(self) -> None:
        self._granted: dict[str, tuple[int, int]] = {}

    def grants(self, vote_request: VoteRequest) -> bool:
        """Whether the replica may hold its shard alone from now on. A repeated request gets the same answer."""
        term, ps = self._granted.get(vote_request.lineage, (0, NOBODY))
        if vote_request.term > term and not 0 < vote_request.unless_after < term:
            self._granted[vote_request.lineage] = (vote_request.term, vote_request.ps)
            return True
        return vote_request.term == term and vote_request.ps == ps
