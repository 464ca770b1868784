"""ShardFinder: joins whichever ps holds a shard, and opens the stream to it."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import (
    CheckpointError,
    DeadlineExceeded,
    ModelMismatch,
    RefusalCode,
    Refused,
    ResourceExhausted,
    StreamClosed,
    UnknownHost,
    Unreachable,
)
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.heartbeats import Heartbeats
from trainband.ps.worker.membership import POLL_S, Membership
from trainband.ps.worker.shard_link import Link
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Waiting
from trainband.wire import messages as m
from trainband.wire.codec import encode
from trainband.wire.transport import Stream


class ShardFinder:
    """Finds the ps of a shard, at the start and when it has gone. Any thread may; one at a time looks for a shard.

    Args:
      membership: of this worker.
      cluster_view: what is known of every ps.
      heartbeats: which begin at a ps as soon as this worker has joined it.
    """

    def __init__(self, membership: Membership, cluster_view: ClusterView, heartbeats: Heartbeats) -> None:
        self.unrecoverable: dict[int, CheckpointError | ModelMismatch | ResourceExhausted] = {}
        """Of shards that cannot be given their values again: why."""
        self._membership = membership
        self._timeouts = membership.timeouts
        self._cluster_view = cluster_view
        self._heartbeats = heartbeats
        self._log = task_logger(__name__, membership.task)

    @property
    def lost(self) -> str:
        """Why nobody can give a shard its values back, where this worker or another one has found that; else empty."""
        return self._cluster_view.lost if self._first_lost is None else str(self._first_lost)

    @property
    def _first_lost(self) -> CheckpointError | None:
        return next((exc for exc in list(self.unrecoverable.values()) if isinstance(exc, CheckpointError)), None)

    def find(self, link: Link, until: Callable[[m.Joined, bool], bool], whom: str) -> m.Joined:
        """Joins whichever ps has the shard.

        Args:
          until: of an answer, and whether no ps that may have the shard has it: whether that will do.
          whom: who is waited for.
        """
        membership = self._membership
        waiting = membership.waiting(self._timeouts.start_s)
        without: set[int] = set()
        unknown: Waiting | None = None  # since the host name of the ps cannot be resolved
        pause_s = POLL_S / 8  # where a shard has moved, the other ps may be about to hear of it
        with link.recovering:
            while True:
                try:
                    joined = self.join_once(link)
                    (without.add if joined.empty else without.discard)(link.ps)
                    if not link.lineage:
                        link.lineage = joined.lineage
                    membership.sequence = max(membership.sequence, joined.last_sequence)
                    if link.index == 0 and joined.trainings:
                        membership.trainings = joined.trainings
                    if until(joined, len(without) == len(link.places)):
                        self._log.info("joined %s as worker %d, in term %d", link, joined.worker, joined.term)
                        return joined
                    membership.check(waiting, whom, "check that it runs, or raise Timeouts.start_s")
                except UnknownHost as exc:
                    without.discard(link.ps)
                    if unknown is None:
                        unknown = membership.waiting(self._timeouts.resolve_s)
                        membership.say(f"{link.name}: {exc}")
                    # A task that was in the job has resolved the name before: it will be known again.
                    if not membership.joined and unknown.waited_s >= self._timeouts.resolve_s:
                        raise UnknownHost(
                            f"waited {unknown.waited_s:.1f} s for the host name of {link} to be known; check its "
                            "spelling in the cluster, and that this machine can look it up, or raise "
                            "Timeouts.resolve_s."
                        ) from None
                    membership.check(waiting, whom, "check its host name, or raise Timeouts.start_s")
                except (Unreachable, StreamClosed) as exc:
                    unknown = None
                    self._log.debug("%s does not answer, and is asked again: %s", link, exc)
                    without.discard(link.ps)
                    advice = "check that it runs and that its address is right, or raise Timeouts.start_s"
                    try:
                        membership.check(waiting, whom, advice)
                    except DeadlineExceeded as late:
                        raise Unreachable(str(late)) from None
                except DeadlineExceeded as exc:
                    unknown = None
                    self._log.debug("%s does not answer, and is asked again: %s", link, exc)
                    without.discard(link.ps)
                    advice = "check that it runs and is not overloaded, or raise Timeouts.start_s"
                    membership.check(waiting, whom, advice)
                except Refused as exc:
                    if exc.code is RefusalCode.OTHER_MODEL:
                        raise ModelMismatch(str(exc)) from None
                    # Where this process takes the place of one that has died, a ps may not know of that yet.
                    if exc.code is not RefusalCode.NAME_TAKEN or waiting.waited_s > self._timeouts.lease_s:
                        raise
                    what = f"{link} to see that the process which had the place of {membership.task} is gone"
                    waiting.check(what, "")
                if len(link.places) > 1:
                    link.move()
                membership.runtime.sleep(pause_s)
                pause_s = min(POLL_S, 2 * pause_s)

    def find_again(self, link: Link) -> m.Joined:
        """Joins the ps that has the shard now, once it has what this worker needs to go on."""
        return self.find(link, self._is_ready(link), f"{link} to come back with its values")

    def join_once(self, link: Link) -> m.Joined:
        """Joins the ps with which this link speaks."""
        # A ps that may be dead is not waited for long where another may have the shard.
        patience_s = self._timeouts.connect_s if len(link.places) == 1 else self._timeouts.heartbeat_s
        joined = link.call("join", self._membership.application(), m.Joined, patience_s)
        link.worker, link.term = joined.worker, joined.term
        self._cluster_view.heard(link.ps)
        self._heartbeats.heartbeaters[link.ps].worker = joined.worker
        if joined.initialised:
            self._membership.job = self._membership.job or joined.job
        return joined

    def reconnect(self, link: Link) -> None:
        """Connects anew, with the ps that has the shard as far as is known."""
        link.at = self._cluster_view.holder(link)
        link.reconnect()

    def open(self, link: Link, *, bootstrapping: bool = False) -> Stream:
        """The stream to the ps, opened where there is none."""
        if link.stream is None:
            link.stream = link.connection.open_stream(timeout_s=self._timeouts.connect_s)
            self._log.debug("opened a stream to %s over %s", link, link.stream.transport)
            link.stream.send(encode(m.Open(link.worker, self._membership.incarnation, link.index, bootstrapping)))
        return link.stream

    def _is_ready(self, link: Link) -> Callable[[m.Joined, bool], bool]:
        """Whether a ps that was joined again has what this worker needs to go on."""

        def ready(joined: m.Joined, nobody: bool) -> bool:  # noqa: ARG001 - see `find`
            if self._first_lost is not None:  # of any shard: all tasks shall end with the same error
                raise self._first_lost
            if link.index in self.unrecoverable:
                raise self.unrecoverable[link.index]
            if self._cluster_view.lost:
                raise CheckpointError(self._cluster_view.lost)
            return joined.initialised and joined.fit >= self._membership.fit

        return ready
