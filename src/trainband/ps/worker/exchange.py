"""A worker's exchange with all ps in a step: its gradients there, the params back, whatever breaks off meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs
from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, PeerError, RefusalCode, Refused, StreamClosed, Unreachable
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.heartbeats import Heartbeats
from trainband.ps.worker.membership import PREEMPTED_WAIT_S, Membership
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Blocks, Link
from trainband.runtime.logs import task_logger
from trainband.runtime.step_recording import PushTimes
from trainband.runtime.waiting import Waiting
from trainband.wire import messages as m
from trainband.wire.codec import decode_any, encode
from trainband.wire.transport import Stream
from trainband.wire.workload import Workload

AT_ONCE_BYTES = 4 << 20
"""A push to several ps that is larger than this goes to all of them at the same time, from a thread for each: a ps that
is slow to take its part must not keep the others from theirs. Below it, a send does not wait for anybody."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came back from all ps.

    Attributes:
      params: for each ps its blocks. BORROWED: the next exchange or pull overwrites them.
      versions: of each shard; the first is the global step.
      staleness: of the update that the push became, the largest over the ps; 0 where it became none.
      applied: whether every ps made an update of the push.
      restarted: whether a ps has lost updates that this worker knew of: what was computed from them is of no use.
      done: whether every ps has made all the updates that were asked for.
      refusal: why a ps refused the gradient as not finite; empty if none did.
      worker_state: where a checkpoint waits for this worker's worker state: how many of its pushes came after it.
      share: of how many parts this worker's next step shall be, by the first ps; 0 where that is left to it.
    """

    params: tuple[Blocks, ...]
    versions: tuple[int, ...]
    staleness: int
    applied: bool
    restarted: bool
    done: bool
    refusal: str
    worker_state: int | None
    share: int = 0

    @property
    def global_step(self) -> int:
        """The version of ps:0."""
        return self.versions[0]


class Exchanger:
    """Pushes and pulls, by the streams to all ps; a ps that is gone is waited for where the job recovers.

    Args:
      membership: of this worker.
      links: to every shard.
      cluster_view: what is known of every ps.
      finder: looks for a ps that is gone.
      heartbeats: more of which are sent while this worker waits for one.
    """

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        finder: ShardFinder,
        heartbeats: Heartbeats,
    ) -> None:
        self._membership = membership
        self._timeouts = membership.timeouts
        self._links = links
        self._cluster_view = cluster_view
        self._finder = finder
        self._heartbeats = heartbeats
        self._log = task_logger(__name__, membership.task)
        self._sent_at = self._held_s = 0.0
        self._sends: dict[int, tuple[float, float, int]] = {}
        """Of a push that is recorded, by shard: when it began to go out and had gone, and its bytes."""

    def initialise(self, link: Link, values: Sequence[NDArray[Any]], *, bootstrapping: bool = False) -> None:
        """Chief only: sends a shard its first values; returns when the ps has them."""
        self._finder.open(link, bootstrapping=bootstrapping).send(encode(m.Initialise()), values)
        self._answer(link, "its answer to the first values")

    def pull(self) -> Exchange:
        """The params of every ps as they are now."""
        header = encode(m.Pull())
        for link in self._links:
            self._send_one(link, header, ())
        return self._collect("the params")

    def send(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
        workload: Workload | None = None,
    ) -> None:
        """Numbers the push and sends it, to all ps at once where it is large."""
        membership = self._membership
        begin = membership.runtime.clock()
        membership.sequence, membership.paused = membership.sequence + 1, False
        recorded = membership.times.recorder is not None
        self._sends.clear()
        shares = list(zip(self._links, gradients, versions, strict=True))
        headers = [
            encode(m.Push(membership.sequence, v, examples, loss, finite, membership.fit, workload, recorded))
            for v in versions
        ]
        if len(shares) == 1 or sum(block.nbytes for blocks in gradients for block in blocks) < AT_ONCE_BYTES:
            for (link, blocks, _), header in zip(shares, headers, strict=True):
                self._push_one(link, header, blocks, recorded=recorded)
        else:
            sends = [
                partial(self._push_one, link, header, blocks, recorded=recorded)
                for (link, blocks, _), header in zip(shares, headers, strict=True)
            ]
            membership.runtime.run_all(sends, "trainband-send")
        self._sent_at = membership.runtime.clock()
        membership.times.note("send", begin, self._sent_at)

    def assign(
        self, blocks: Sequence[Sequence[NDArray[Any]]], slices: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Exchange:
        """Gives every ps the values for its slices, and returns the params as they are then.

        Where a ps is lost meanwhile, what was to be added may be lost with it; it is never added twice.
        """
        for link, values, (replaced, added) in zip(self._links, blocks, slices, strict=True):
            if not replaced and not added:
                self._send_one(link, encode(m.Pull()), ())
                continue
            self._send_one(link, encode(m.Assign(tuple(replaced), tuple(added))), values)
            if added:
                link.request = encode(m.Pull()), ()
        return self._collect("its answer to an assignment")

    def _push_one(self, link: Link, header: bytes, blocks: Sequence[NDArray[Any]], *, recorded: bool) -> None:
        begin = self._membership.runtime.clock() if recorded else 0.0
        self._send_one(link, header, blocks)
        if recorded:
            nbytes = sum(block.nbytes for block in blocks)
            self._sends[link.index] = (begin, self._membership.runtime.clock(), nbytes)

    def _send_one(self, link: Link, header: bytes, blocks: Sequence[NDArray[Any]]) -> None:
        if link.stream is None and not (self._membership.joined and self._membership.recovers):
            self._stream(link)  # which raises
        link.request = header, blocks
        try:
            self._stream(link).send(header, blocks)
        except StreamClosed as exc:
            link.broken = exc  # `_receive` sees to it, when the others have got theirs

    def collect(self) -> Exchange:
        """Waits for all answers to the push that was sent last."""
        begin = self._membership.runtime.clock()
        exchange = self._collect("the answer to a push")
        self._note_times(begin)
        return exchange

    def _note_times(self, begin: float) -> None:
        """Notes what the wait for all answers, since `begin`, was for.

        The push that was held longest is what the worker waited for; with overlap, a part of that was no wait.
        """
        times, now = self._membership.times, self._membership.runtime.clock()
        waited_s = now - begin
        hidden_s = max(0.0, begin - self._sent_at)
        held_s = min(waited_s, max(0.0, self._held_s - hidden_s))
        times.ps += held_s
        times.network += waited_s - held_s
        if times.recorder is not None:
            times.recorder.span("wait", begin, now)

    def _note_push(self, link: Link, answer: m.Params, blocks: Blocks) -> None:
        """Notes the moments of a push that was recorded."""
        begin, sent, nbytes = self._sends.pop(link.index)
        recorder = self._membership.times.recorder
        if recorder is not None:
            now, answer_nbytes = self._membership.runtime.clock(), sum(block.nbytes for block in blocks)
            recorder.push(PushTimes(link.name, nbytes, answer_nbytes, begin, sent, now, answer.moments))

    def _collect(self, what: str) -> Exchange:
        params: list[Blocks] = []
        versions = []
        staleness, applied, restarted, done, refusal, worker_state = 0, True, False, True, "", None
        share, self._held_s = 0, 0.0
        clock, several = self._membership.runtime.clock, len(self._links) > 1
        for link in self._links:
            lineage = link.lineage
            begin = clock() if several else 0.0
            answer, blocks = self._receive(link, what)
            if several:
                self._membership.times.note_wait(link.name, begin, clock())
            if link.index in self._sends:
                self._note_push(link, answer, blocks)
            self._held_s = max(self._held_s, answer.held_s)
            restarted = restarted or link.lineage != lineage
            # All ps divide alike, unless they hear of a worker's going at different steps: the word of one counts.
            share = share if params else answer.share
            params.append(blocks)
            versions.append(answer.version)
            staleness = max(staleness, answer.staleness)
            applied = applied and answer.outcome == m.APPLIED
            done = done and answer.done
            if answer.outcome == m.NON_FINITE:
                refusal = answer.detail
            if answer.worker_state:
                worker_state = self._membership.sequence - answer.worker_state
        return Exchange(
            tuple(params), tuple(versions), staleness, applied, restarted, done, refusal, worker_state, share
        )

    def _receive(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        """The answer to the last request. Where the job has checkpoints, a ps that has gone is waited for."""
        died = False
        while True:
            try:
                answer, blocks = self._answer(link, what)
                return (structs.replace(answer, outcome=m.DROPPED) if died else answer), blocks
            except StreamClosed as exc:
                if not self._membership.recovers:
                    raise _lost(link, exc) from None
                moved = isinstance(exc, _Moved)
                self._log.info("%s %s: %s", "another ps holds the shard of" if moved else "lost", link, exc)
                if not moved:
                    self._membership.say(f"lost {link} ({exc}) {self._membership.task} goes on when it is back")
            self._heartbeats.set_urgent(True)
            died = self._is_back(link, moved=moved) or died
            self._heartbeats.set_urgent(False)

    def _answer(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        if link.broken is not None:
            raise link.broken
        stream = self._stream(link)
        frame = stream.receive(self._timeouts.heartbeat_s)
        if frame is None:
            self._heartbeats.set_urgent(self._membership.standbys > 0)
            waiting = self._membership.waiting(self._timeouts.stall_s)
            advice = "check that it is not overloaded or stopped, or raise Timeouts.stall_s"
            while frame is None:
                if self._cluster_view.is_superseded(link):
                    raise StreamClosed(f"another ps holds shard {link.index} now.")
                whom = self._whom(link, what, waiting)
                if self._cluster_view.silent_s(link.ps) > PREEMPTED_WAIT_S:
                    self._membership.check(waiting, whom, advice)
                else:
                    waiting.check(whom, advice)
                frame = stream.receive(self._timeouts.heartbeat_s)
            self._membership.blocked_by = ()
            self._heartbeats.set_urgent(False)
        link.suspected_at, link.cut = None, False
        answer: m.Downward = decode_any(frame.header, m.Downward, str(link))
        if isinstance(answer, m.Failure):
            refused = Refused(f"{link} refused: {answer.message}", answer.code)
            if self._membership.recovers and refused.is_for_another:
                raise (_Moved if answer.code is RefusalCode.MOVED else StreamClosed)(answer.message)
            raise refused
        return answer, link.blocks(self._membership.plan, frame.body)

    def _is_back(self, link: Link, *, moved: bool) -> bool:
        """Waits for a ps that is gone, and sends the last request again; returns whether it had died meanwhile.

        A ps that still lives knows a push that it has dealt with by its number. One that has died has the values of
        the last checkpoint and could not place the push: it is asked for its params, and the push is lost there.

        `moved`: the ps has said that another one holds the shard.
        """
        self._membership.blocked_by = ()
        before = link.ps
        with link.recovering:
            if moved and self._cluster_view.holder(link) == link.at:
                link.move()
            else:
                self._finder.reconnect(link)
            joined = self._finder.find_again(link)
        died = joined.lineage != link.lineage
        if died:
            link.lineage = joined.lineage
            link.request = encode(m.Pull()), ()
        try:
            self._finder.open(link).send(*link.request)
        except (StreamClosed, Unreachable, DeadlineExceeded) as exc:
            link.broken = StreamClosed(str(exc))
        else:
            news = "is back" if link.ps == before else f"has shard {link.index} now"
            self._membership.say(f"{link} {news}" + (", with the values of the last checkpoint" if died else ""))
        return died

    def _whom(self, link: Link, what: str, waiting: Waiting) -> str:
        """For whom this worker waits: the ps, or other workers for whom the ps waits; those may take their time."""
        if len(link.places) > 1 and self._heartbeats.is_silent(link):
            self._membership.blocked_by = ()
            return f"{link} to send {what}"  # to ask it would only keep this worker from going on with its successor
        try:
            state = link.call("state", None, m.JobState, self._timeouts.heartbeat_s)
        except PeerError:
            return f"{link} to send {what}"
        standbys = [task for task in state.waiting_for if task.startswith("ps:")]
        if standbys:
            self._membership.blocked_by = ()
            return f"{link}, which waits for its standby {', '.join(standbys)}, to send {what}"
        others = [task for task in state.waiting_for if task != self._membership.task]
        self._membership.blocked_by = tuple(others)
        if not others:
            return f"{link} to send {what}"
        waiting.extend()
        return f"the gradients of {', '.join(others)}, as {link.name} does"

    def _stream(self, link: Link) -> Stream:
        if link.stream is None:
            raise StreamClosed(
                f"{self._membership.task} has no stream to {link}: it has not joined the job, or has left it."
            )
        return link.stream


class _Moved(StreamClosed):
    """The ps has said that another one holds the shard."""


def _lost(link: Link, exc: StreamClosed) -> StreamClosed:
    """The error for a stream that has ended: which task that was, and what to do."""
    return StreamClosed(
        f"{link.name} is not there any more: {exc} See what {link.name} printed last, and start the job again."
    )
