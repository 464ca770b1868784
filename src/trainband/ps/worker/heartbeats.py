"""Heartbeats: a worker's signs of life to every ps, and what it does at once by what it hears in return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from trainband.errors import DeadlineExceeded, PeerError, RefusalCode, Refused
from trainband.ps.worker.clock_readings import ClockReadings
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.heartbeater import Heartbeater
from trainband.ps.worker.membership import PREEMPTED_WAIT_S, Membership
from trainband.ps.worker.ordered_recordings import OrderedRecordings
from trainband.ps.worker.shard_link import Link, Place
from trainband.runtime.logs import task_logger
from trainband.wire import messages as m
from trainband.wire.codec import decode, encode
from trainband.wire.recording import RecordingOrder
from trainband.wire.replication import Vote, VoteRequest
from trainband.wire.transport import Connection

SILENT_BEATS = 2
"""Heartbeats without an answer after which

- a ps is not asked for whom it waits, for its successor may answer soon, and the others are asked more often;
- a ps was away, or the network: TCP tries an old connection again only after as long a time as the network was away, so
  a stream that is still silent half a heartbeat after the ps answers again is opened anew.
"""

MOST_LEASES = 3
"""How long a worker that leaves waits for another to decide in its place."""


class Heartbeats:
    """The heartbeats to all ps, each from a thread of its own.

    Args:
      ps: all of them.
      membership: of this worker.
      links: to every shard.
      cluster_view: where the answers are noted.
      revive: called after each answer, to look whether a shard must be given its values again.
    """

    def __init__(
        self,
        ps: Sequence[Place],
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        revive: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._timeouts = membership.timeouts
        self._clock = membership.runtime.clock
        self._links = links
        self._cluster_view = cluster_view
        self._revive = revive
        self._urgent = False
        readings = ClockReadings()
        self.recordings = OrderedRecordings(membership, readings)
        """What is recorded of this worker's steps."""
        self._log = task_logger(__name__, membership.task)
        self.heartbeaters = [
            Heartbeater(
                i,
                address,
                membership.incarnation,
                membership.transport,
                membership.timeouts,
                membership.runtime,
                readings,
                blocked_by=lambda: membership.blocked_by,
                paused=lambda: membership.paused,
                first_batch=lambda: membership.first_batch,
                spent=lambda: tuple(membership.times.seconds().values()),
                memory=membership.resources.memory,
                urgent=self._is_urgent,
                join=self._join_at,
                heard=self._heard,
            )
            for i, address in ps
        ]

    # --- coming and going

    def start(self) -> None:
        """Begins to beat."""
        for heartbeater in self.heartbeaters:
            heartbeater.start()

    def join_late_ps(self) -> None:
        """From now on, a ps that was not there is joined as soon as it answers."""
        for heartbeater in self.heartbeaters:
            heartbeater.knocks = True

    def stop(self) -> None:
        """Beats no more."""
        for heartbeater in self.heartbeaters:
            heartbeater.stop()
        for heartbeater in self.heartbeaters:
            heartbeater.wait()

    def leave(self, failure: str, lost: str = "") -> None:
        """Tells every ps that this worker leaves, after `stop`.

        `lost`: why nobody can give a shard its values back, if that is so.
        """
        # One that was asked to leave may come back: the job is not over by that, though nobody else be at work.
        why = failure or self._membership.request
        for heartbeater in self.heartbeaters:
            try:
                heartbeater.leave(why, lost)
            except PeerError as exc:
                # One that fails has said enough; a ps that is new does not miss it.
                is_unknown = isinstance(exc, Refused) and exc.code is RefusalCode.UNKNOWN_WORKER
                if not (failure or is_unknown):
                    self._membership.say(f"could not tell {heartbeater} that this worker leaves: {exc}")

    def hand_over_decisions(self) -> None:
        """Stays until another worker decides in its place who holds a shard: a ps may die as it leaves."""
        membership = self._membership
        most_s = PREEMPTED_WAIT_S if membership.request else MOST_LEASES * self._timeouts.lease_s
        waiting = membership.waiting(most_s)
        try:
            while True:
                for heartbeater in self.heartbeaters:
                    waiting.check("another worker to be asked who holds a shard", "look at the ps")
                    self._listen(heartbeater)
                if not self._cluster_view.decides():
                    return
                membership.pause()
        except DeadlineExceeded as exc:
            membership.say(f"{membership.task} leaves, though no other worker can be asked who holds a shard: {exc}")

    def close(self) -> None:
        """Hangs up."""
        for heartbeater in self.heartbeaters:
            heartbeater.close()

    def _listen(self, heartbeater: Heartbeater) -> None:
        """Hears a ps after leaving, and decides what it asks."""
        try:
            state = heartbeater.look() if heartbeater.worker >= 0 else None
        except DeadlineExceeded:
            return  # it may be silent for a moment only
        except PeerError:
            state = None
        for vote_request in self._cluster_view.note(heartbeater.ps, state, begun=True):
            self._decide(heartbeater.ps, vote_request)

    def _join_at(self, connection: Connection) -> int:
        """Joins the ps at the other end; returns this worker's number there."""
        application = encode(self._membership.application())
        answer = connection.call("join", application, timeout_s=self._timeouts.connect_s)
        return decode(answer, m.Joined, connection.address).worker

    # --- how often

    def set_urgent(self, on: bool) -> None:
        """Beats more often while this worker waits for a ps."""
        self._urgent = on
        for heartbeater in self.heartbeaters if on else ():
            heartbeater.wake()

    def is_silent(self, link: Link) -> bool:
        """Whether the ps of a link has not answered for some heartbeats."""
        return self._cluster_view.silent_s(link.ps) > SILENT_BEATS * self._timeouts.heartbeat_s

    def _is_urgent(self) -> bool:
        """Whether this worker waits for a ps, or is about to: a stream hears nothing of one that is silent."""
        successors = self._membership.joined and self._membership.standbys > 0
        silent = successors and any(map(self.is_silent, self._links))
        return self._urgent or silent or any(map(self._may_be_lost, self._links))

    def _may_be_lost(self, link: Link) -> bool:
        """Whether somebody waits on a stream that was there when the network was away, and hears nothing."""
        stream = link.stream
        if stream is None or link.suspected_at is None or link.cut:
            return False
        return stream.silent_s > self._timeouts.heartbeat_s / 2

    # --- what they bring

    def _heard(self, ps: int, state: m.JobState | None) -> None:
        """An answer to a heartbeat; called by each ps's own thread."""
        if self._membership.left:
            return
        if state is not None:
            self._look_for_lost_streams(ps, was_away=self._cluster_view.unanswered(ps) >= SILENT_BEATS)
            self._record_steps(ps, state.recording)
        for vote_request in self._cluster_view.note(ps, state, begun=self._membership.fit > 0):
            self._decide(ps, vote_request)
        for link in self._links if self._membership.standbys else ():
            stream = link.stream
            if stream is not None and self._cluster_view.is_superseded(link):
                stream.interrupt()  # whoever waits there waits in vain
        self._revive()

    def _record_steps(self, ps: int, order: RecordingOrder | None) -> None:
        recorded = self.recordings.heard(ps, order)
        if recorded is None:
            return
        heartbeater = self.heartbeaters[ps]
        try:
            heartbeater.tell("recorded", encode(replace(recorded, worker=heartbeater.worker)))
        except PeerError as exc:  # whoever waits for it is told that this worker has sent nothing
            self._log.info("could not send %s the steps that it wanted: %s", heartbeater, exc)

    def _look_for_lost_streams(self, ps: int, *, was_away: bool) -> None:
        """Has streams opened anew on which a worker waits for a ps that answers otherwise; each once in an outage."""
        timeouts = self._timeouts
        for link in self._links if self._membership.joined and self._membership.recovers else ():
            stream = link.stream
            if link.ps != ps or stream is None:
                continue
            if was_away:
                link.suspected_at, link.cut = self._clock(), False
                continue
            since, most_s = link.suspected_at, timeouts.stall_s / 2
            # A ps that goes on mostly gives a sign of life every half heartbeat. Where one comes later, the stream is
            # opened anew in vain, once.
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
            heartbeater.tell(f"vote/{vote_request.shard}", encode(vote))
        except PeerError as exc:  # it will ask again
            self._membership.say(f"could not tell {heartbeater} who holds shard {vote_request.shard}: {exc}")
