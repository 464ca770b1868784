"""ShardFinder: joins whichever ps holds a shard, and opens the stream to it."""

from __future__ import annotations

from collections.abc import Callable

from trainband.errors import (
    CheckpointError,
    DeadlineExceeded,
    ModelMismatch,
    NoTaskListens,
    RefusalCode,
    Refused,
    ResourceExhausted,
    StreamClosed,
    UnknownHost,
    Unreachable,
)
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.membership import MOST_POLL_S, POLL_S, Membership
from trainband.ps.worker.shard_link import Link
from trainband.runtime.logs import task_logger
from trainband.runtime.waiting import Waiting
from trainband.version import of_other_code
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import encode
from trainband.wire.transport import Stream


class ShardFinder:
    """Finder of a shard's ps, at the start and after a loss. For any thread; one at a time per shard."""

    def __init__(self, membership: Membership, cluster_view: ClusterView) -> None:
        self.unrecoverable: dict[int, CheckpointError | ModelMismatch | ResourceExhausted] = {}
        """Why shards cannot be restored, by shard."""
        self._membership = membership
        self._timeouts = membership.timeouts
        self._cluster_view = cluster_view
        self._log = task_logger(__name__, membership.task)
        self._of_other_code: set[int] = set()
        """The ps already warned about."""

    @property
    def lost(self) -> str:
        """Why a shard's values cannot be recovered, as found by this or another worker; else empty."""
        return self._cluster_view.lost if self._first_lost is None else str(self._first_lost)

    @property
    def _first_lost(self) -> CheckpointError | None:
        return next((exc for exc in list(self.unrecoverable.values()) if isinstance(exc, CheckpointError)), None)

    def find(self, link: Link, until: Callable[[m.Joined, bool], bool], awaited: str) -> m.Joined:
        """Joins whichever ps has the shard.

        Args:
          until: whether to stop, given an answer and whether no candidate ps has the shard.
          awaited: what to wait for.
        """
        membership = self._membership
        waiting = membership.waiting(self._timeouts.start_s)
        without: set[int] = set()
        has_answered = False
        unknown: Waiting | None = None  # since the host name of the ps cannot be resolved
        pause_s = POLL_S / 8  # if a shard moved, the other ps may be about to learn of it
        with link.recovering:
            while True:
                try:
                    joined, has_answered = self.join_once(link), True
                    (without.add if joined.empty else without.discard)(link.ps)
                    self._record_joined(link, joined)
                    if until(joined, len(without) == len(link.places)):
                        self._log.info("joined %s as worker %d, in term %d", link, joined.worker, joined.term)
                        return joined
                    membership.check(waiting, awaited, "check that it runs, or raise Timeouts.start_s")
                except UnknownHost as exc:
                    without.discard(link.ps)
                    unknown = self._check_host(link, exc, unknown)
                    membership.check(waiting, awaited, "check its host name, or raise Timeouts.start_s")
                except (Unreachable, StreamClosed) as exc:
                    unknown = None
                    self._log.debug("%s does not answer, and is asked again: %s", link, exc)
                    without.discard(link.ps)
                    if isinstance(exc, NoTaskListens):
                        for_what = f"{link}, where the process listening is not a trainband task"
                        advice = "check the address, and that no other program has the port"
                    else:
                        for_what, advice = awaited, "check that it runs and that its address is right"
                    try:
                        membership.check(waiting, for_what, f"{advice}, or raise Timeouts.start_s")
                    except DeadlineExceeded as late:
                        raise Unreachable(str(late)) from None
                except DeadlineExceeded as exc:
                    unknown = None
                    self._log.debug("%s does not answer, and is asked again: %s", link, exc)
                    without.discard(link.ps)
                    advice = "check that it runs and is not overloaded"
                    if not has_answered:  # another program, or a firewall that drops packets, looks the same
                        advice = "check that it runs, and that neither another program nor a firewall has its port"
                    membership.check(waiting, awaited, f"{advice}, or raise Timeouts.start_s")
                except Refused as exc:
                    if exc.code is RefusalCode.OTHER_MODEL:
                        raise ModelMismatch(str(exc)) from None
                    # If this process replaces one that died, a ps may not know that yet.
                    if exc.code is not RefusalCode.NAME_TAKEN or waiting.waited_s > self._timeouts.lease_s:
                        raise
                    what = f"{link} to see that the previous process of {membership.task} is gone"
                    waiting.check(what, "")
                if len(link.places) > 1:
                    link.move()
                membership.runtime.sleep(pause_s)
                pause_s = min(self._slowest_s(waiting), 2 * pause_s)

    def _slowest_s(self, waiting: Waiting) -> float:
        """Returns the pause between two attempts at most.

        Many workers that wait for the chief would else take the ps's processor from what they wait for.
        """
        return POLL_S if self._membership.joined else min(MOST_POLL_S, max(POLL_S, waiting.waited_s / 8))

    def _record_joined(self, link: Link, joined: m.Joined) -> None:
        membership = self._membership
        link.lineage = link.lineage or joined.lineage
        membership.sequence = max(membership.sequence, joined.last_sequence)
        if link.index == 0 and joined.trainings:
            membership.training.starts = joined.trainings

    def _check_host(self, link: Link, exc: UnknownHost, unknown: Waiting | None) -> Waiting:
        """Returns the wait for a host name, which may begin now."""
        if unknown is None:
            unknown = self._membership.waiting(self._timeouts.resolve_s)
            self._membership.say(f"{link.name}: {exc}")
        # A task that was in the job has resolved the name before and will again.
        if not self._membership.joined and unknown.waited_s >= self._timeouts.resolve_s:
            raise UnknownHost(
                f"waited {unknown.waited_s:.1f} s for the host name of {link} to resolve; check its spelling in the "
                "cluster and that this machine can resolve it, or raise Timeouts.resolve_s."
            ) from None
        return unknown

    def find_again(self, link: Link) -> m.Joined:
        """Joins the ps that has the shard now, once it has what this worker needs."""
        return self.find(link, self._is_ready(link), f"{link} to come back with its values")

    def join_once(self, link: Link) -> m.Joined:
        """Joins the ps that this link talks to."""
        # Do not wait long for a ps that may be dead if another may have the shard.
        patience_s = self._timeouts.connect_s if len(link.places) == 1 else self._timeouts.heartbeat_s
        joined = link.call("join", self._membership.application(), m.Joined, patience_s)
        link.worker, link.term = joined.worker, joined.term
        warning = of_other_code(f"ps:{link.ps}", joined.version, self._membership.task)
        if warning and link.ps not in self._of_other_code:
            self._of_other_code.add(link.ps)
            self._membership.say(warning)
        self._cluster_view.record_contact(link.ps)
        self._membership.numbers[link.ps] = joined.worker
        if joined.initialised:
            self._membership.job = self._membership.job or joined.job
        return joined

    def reconnect(self, link: Link) -> None:
        """Reconnects to the ps that is believed to hold the shard."""
        link.at = self._cluster_view.holder(link)
        link.reconnect()

    def open(self, link: Link, *, bootstrapping: bool = False) -> Stream:
        """Returns the stream to the ps, opened if needed."""
        if link.stream is None:
            link.stream = link.connection.open_stream(timeout_s=self._timeouts.connect_s)
            self._log.debug("opened a stream to %s over %s", link, link.stream.transport)
            link.stream.send(encode(m.Open(link.worker, self._membership.incarnation, link.index, bootstrapping)))
        return link.stream

    def _is_ready(self, link: Link) -> Callable[[m.Joined, bool], bool]:
        """Returns a test of whether a rejoined ps has what this worker needs."""

        def ready(joined: m.Joined, nobody: bool) -> bool:  # noqa: ARG001 - see `find`
            if self._first_lost is not None:  # of any shard: all tasks must end with one error
                raise self._first_lost
            if link.index in self.unrecoverable:
                raise self.unrecoverable[link.index]
            if self._cluster_view.lost:
                raise CheckpointError(self._cluster_view.lost)
            return joined.initialised and joined.fit >= self._membership.training.number

        return ready
