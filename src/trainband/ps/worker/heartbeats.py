"""Heartbeats: a worker's heartbeats to every ps, and its immediate reactions to the answers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainband.errors import DeadlineExceeded, PeerError, RefusalCode, Refused
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.heartbeater import Heartbeater
from trainband.ps.worker.membership import PREEMPTED_WAIT_S, Membership
from trainband.ps.worker.recordings import Recordings
from trainband.ps.worker.reviver import Reviver
from trainband.ps.worker.shard_link import Link, Place
from trainband.ps.worker.urgency import SILENT_BEATS, Urgency
from trainband.runtime.logs import task_logger
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode
from trainband.wire.messages.recording import RecordingOrder
from trainband.wire.messages.replication import Vote, VoteRequest

MOST_LEASES = 3
"""Leases that a leaving worker waits for another to become arbiter."""


class Heartbeats:
    """Heartbeats to all ps, each from its own thread."""

    def __init__(
        self,
        ps: Sequence[Place],
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        urgency: Urgency,
        reviver: Reviver,
    ) -> None:
        self._membership = membership
        self._timeouts = membership.timeouts
        self._clock = membership.runtime.clock
        self._links = links
        self._cluster_view = cluster_view
        self._reviver = reviver
        self.recordings = Recordings(membership)
        """Recordings of this worker's steps."""
        self._log = task_logger(__name__, membership.task)
        self.heartbeaters = [
            Heartbeater(place, membership, urgency, self.recordings, self._handle_answer) for place in ps
        ]

    def start(self) -> None:
        """Starts sending heartbeats."""
        for heartbeater in self.heartbeaters:
            heartbeater.start()

    def join_late_ps(self) -> None:
        """From now on, joins an absent ps as soon as it answers."""
        for heartbeater in self.heartbeaters:
            heartbeater.joins = True

    def stop(self) -> None:
        """Stops sending heartbeats."""
        for heartbeater in self.heartbeaters:
            heartbeater.stop()
        for heartbeater in self.heartbeaters:
            heartbeater.wait()

    def leave(self, failure: str, lost: str = "") -> None:
        """Tells every ps that this worker leaves, after `stop`.

        `lost`: why a shard's values cannot be recovered, if so.
        """
        # A worker asked to leave may return: the job is not over even if no one else is at work.
        why = failure or self._membership.request
        for heartbeater in self.heartbeaters:
            try:
                heartbeater.leave(why, lost)
            except PeerError as exc:
                # A failing worker has said enough; a new ps does not miss it.
                is_unknown = isinstance(exc, Refused) and exc.code is RefusalCode.UNKNOWN_WORKER
                if not (failure or is_unknown):
                    self._membership.say(f"could not tell {heartbeater} that this worker is leaving: {exc}")

    def wait_for_another_arbiter(self) -> None:
        """Stays until another worker is the arbiter: a ps may die as this one leaves."""
        membership = self._membership
        most_s = PREEMPTED_WAIT_S if membership.request else MOST_LEASES * self._timeouts.lease_s
        waiting = membership.waiting(most_s)
        try:
            while True:
                for heartbeater in self.heartbeaters:
                    waiting.check("another worker to become the arbiter", "check the ps")
                    self._listen(heartbeater)
                if not self._cluster_view.decides():
                    return
                membership.pause()
        except DeadlineExceeded as exc:
            membership.say(f"{membership.task} is leaving although no other worker is the arbiter: {exc}")

    def close(self) -> None:
        """Disconnects."""
        for heartbeater in self.heartbeaters:
            heartbeater.close()

    def _listen(self, heartbeater: Heartbeater) -> None:
        """Asks a ps after leaving, and decides its votes."""
        try:
            state = heartbeater.send_heartbeat() if heartbeater.worker >= 0 else None
        except DeadlineExceeded:
            return  # it may be silent only briefly
        except PeerError:
            state = None
        for vote_request in self._cluster_view.record_answer(heartbeater.ps, state, begun=True):
            self._decide(heartbeater.ps, vote_request)

    def _handle_answer(self, ps: int, state: m.JobState | None) -> None:
        """Handles a heartbeat's answer. Called by each ps's thread."""
        if self._membership.left:
            return
        if state is not None:
            self._reopen_lost_streams(ps, was_away=self._cluster_view.unanswered(ps) >= SILENT_BEATS)
            self._record_steps(ps, state.recording)
        for vote_request in self._cluster_view.record_answer(ps, state, begun=self._membership.training.number > 0):
            self._decide(ps, vote_request)
        for link in self._links if self._membership.standbys else ():
            stream = link.stream
            if stream is not None and self._cluster_view.is_superseded(link):
                stream.interrupt()  # no answer will come on it
        self._reviver.poll()

    def _record_steps(self, ps: int, order: RecordingOrder | None) -> None:
        recorded = self.recordings.handle_order(ps, order)
        if recorded is None:
            return
        heartbeater = self.heartbeaters[ps]
        try:
            heartbeater.send("recorded", encode(replace(recorded, worker=heartbeater.worker)))
        except PeerError as exc:  # the ps reports that this worker sent nothing
            self._log.info("could not send %s the recording of its steps: %s", heartbeater, exc)

    def _reopen_lost_streams(self, ps: int, *, was_away: bool) -> None:
        """Reopens streams that stay silent although their ps answers heartbeats; each once per outage."""
        timeouts = self._timeouts
        for link in self._links if self._membership.joined and self._membership.recovers else ():
            stream = link.stream
            if link.ps != ps or stream is None:
                continue
            if was_away:
                link.suspected_at, link.cut = self._clock(), False
                continue
            since, most_s = link.suspected_at, timeouts.stall_s / 2
            # A live ps usually sends a keepalive every half heartbeat. If one comes later, the stream is reopened
            # needlessly, once.
            if since is not None and self._clock() - since > timeouts.heartbeat_s / 2:
                most_s = timeouts.heartbeat_s
            if stream.silent_s > most_s and not link.cut:
                link.cut = True
                stream.interrupt()

    def _decide(self, ps: int, vote_request: VoteRequest) -> None:
        heartbeater, incarnation = self.heartbeaters[ps], self._membership.incarnation
        vote = Vote(heartbeater.worker, incarnation, vote_request.term, self._cluster_view.grants(vote_request))
        self._log.info(
            "votes %s on ps:%d as the holder of shard %d in term %d",
            "yes" if vote.yes else "no",
            vote_request.ps,
            vote_request.shard,
            vote_request.term,
        )
        try:
            heartbeater.send(f"vote/{vote_request.shard}", encode(vote))
        except PeerError as exc:  # it will ask again
            self._membership.say(f"could not send {heartbeater} a vote on shard {vote_request.shard}: {exc}")
