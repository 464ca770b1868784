"""Urgency: when a worker's heartbeats must be more frequent than usual."""

from __future__ import annotations

from collections.abc import Sequence

from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.membership import Membership
from trainband.ps.worker.shard_link import Link

SILENT_BEATS = 2
"""Heartbeats without an answer after which

- a ps is not asked what it waits for, as its successor may answer soon, and the others are asked more often;
- a ps or the network counts as having been away: TCP retries an old connection only after as long as the outage, so
  a stream still silent half a heartbeat after the ps answers again is reopened.
"""


class Urgency:
    """Speeds up the heartbeats to every ps while this worker waits for one or is about to."""

    def __init__(self, membership: Membership, links: Sequence[Link], cluster_view: ClusterView) -> None:
        self._membership = membership
        self._links = links
        self._cluster_view = cluster_view
        self._waits = False
        self.wakes = [membership.runtime.event() for _ in links]
        """By ps: set when its next heartbeat is due at once."""

    def set(self, on: bool) -> None:
        """Sends heartbeats more often while this worker waits for a ps."""
        self._waits = on
        for wake in self.wakes if on else ():
            wake.set()

    def is_silent(self, link: Link) -> bool:
        """Whether the ps of a link has not answered for some heartbeats."""
        return self._cluster_view.silent_s(link.ps) > SILENT_BEATS * self._membership.timeouts.heartbeat_s

    def is_on(self) -> bool:
        """Whether this worker waits for a ps or is about to: streams do not notice a silent ps."""
        successors = self._membership.joined and self._membership.standbys > 0
        silent = successors and any(map(self.is_silent, self._links))
        return self._waits or silent or any(map(self._may_be_lost, self._links))

    def _may_be_lost(self, link: Link) -> bool:
        """Whether this worker waits on a stream that outlived an outage and is silent."""
        stream = link.stream
        if stream is None or link.suspected_at is None or link.cut:
            return False
        return stream.silent_s > self._membership.timeouts.heartbeat_s / 2
