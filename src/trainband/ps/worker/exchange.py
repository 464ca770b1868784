"""A worker's exchange with all ps in a step: gradients out, params back, despite lost connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs
from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, PeerError, RefusalCode, Refused, StreamClosed, Unreachable
from trainband.ps.worker.cluster_view import ClusterView
from trainband.ps.worker.membership import PREEMPTED_WAIT_S, Membership
from trainband.ps.worker.shard_finder import ShardFinder
from trainband.ps.worker.shard_link import Blocks, Link
from trainband.ps.worker.urgency import Urgency
from trainband.runtime.logs import task_logger
from trainband.runtime.step_recording import PushTimes
from trainband.runtime.waiting import Waiting
from trainband.wire.frame import Bytes, Frame
from trainband.wire.messages import calls as m
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.messages.workload import Workload
from trainband.wire.transport import Stream

AT_ONCE_BYTES = 4 << 20
"""A larger push to several ps goes to all at once, with a thread for each, and the answers are received so, for a slow
ps must not delay the others. A smaller send never blocks, and a smaller answer waits in the network's buffers."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The answers of all ps.

    Attributes:
      params: the blocks of each ps, in the job's narrower dtype if they answer a push. BORROWED: the next exchange or
        pull overwrites them.
      versions: of each shard; the first is the global step.
      staleness: of the update made from the push, the largest over the ps; 0 if none was made.
      applied: whether every ps applied the push.
      restarted: whether a ps has lost updates known to this worker; results computed from them are useless.
      done: whether every ps has made all requested updates.
      refusal: why a ps refused the gradient as not finite; empty if none did.
      worker_state: if a checkpoint waits for this worker's state, how many of its pushes came after it.
      share: how many parts this worker's next step has, set by the first ps; 0 lets the worker decide.
      rows: of each ps, the rows asked for, of each table; borrowed like the params.
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
    rows: tuple[Blocks, ...] = ()

    @property
    def global_step(self) -> int:
        """The version of ps:0."""
        return self.versions[0]


_ANSWERED: tuple[bytes, Sequence[NDArray[Any]]] = (b"", ())


class Exchanger:
    """Pushes and pulls over the streams to all ps; waits for a ps that is gone if the job recovers.

    One thread uses it. `pull` and `assign` first collect the answers to a push that is in flight.
    """

    def __init__(
        self,
        membership: Membership,
        links: Sequence[Link],
        cluster_view: ClusterView,
        finder: ShardFinder,
        urgency: Urgency,
    ) -> None:
        self.now: Exchange
        """This worker's newest params and what came with them; set by the first `pull`."""
        self._membership = membership
        self._timeouts = membership.timeouts
        self._links = links
        self._cluster_view = cluster_view
        self._finder = finder
        self._urgency = urgency
        self._in_flight = False
        self._is_large = sum(one.nbytes for one in membership.plan.layout.shards) >= AT_ONCE_BYTES
        self._unanswered: Sequence[Link] = ()
        """The links whose answers are to be received next."""
        self._arrived: dict[int, tuple[Frame, float]] = {}
        """Answers that came while that of another ps was awaited, by shard, and when."""
        self._log = task_logger(__name__, membership.task)
        self._sent_at = self._held_s = self._answered_at = 0.0
        self._sends: dict[int, tuple[float, float, int]] = {}
        """For a recorded push, by shard: when its send began and ended, and its bytes."""

    def initialise(self, link: Link, values: Sequence[NDArray[Any]], *, bootstrapping: bool = False) -> None:
        """Chief only: sends a shard its first values; returns once the ps has them."""
        self._finder.open(link, bootstrapping=bootstrapping).send(encode(m.Initialise()), values)
        self._message(link, "its answer to the first values")  # without values

    def pull(self, asked: Sequence[Blocks] | None = None) -> Exchange:
        """Pulls the current params of every ps, and rows: `asked` has, for each ps, the ids in each table."""
        self.drain()
        header = encode(m.Pull())
        for link, ids in zip(self._links, asked or [()] * len(self._links), strict=True):
            link.asked = ids
            self._send_one(link, header, ids)
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
        asked: Sequence[Blocks] | None = None,
    ) -> None:
        """Numbers a push and sends each ps its gradient blocks, in parallel if they are large.

        Args:
          gradients: each ps's blocks (and for each table ids and gradients), computed from params of `versions`.
          loss: of the batch, for the display.
          examples: in the batch.
          finite: whether every element of the whole gradient is finite.
          workload: the cost of computing it, if the rule divides the examples of an update.
          asked: see `pull`.
        """
        for link, ids in zip(self._links, asked or [()] * len(self._links), strict=True):
            link.asked = ids
        if asked is not None:
            gradients = [(*blocks, *ids) for blocks, ids in zip(gradients, asked, strict=True)]
        membership = self._membership
        begin = membership.runtime.clock()
        membership.sequence, membership.paused = membership.sequence + 1, False
        recorded = membership.times.recorder is not None
        self._sends.clear()
        shares = list(zip(self._links, gradients, versions, strict=True))
        headers = [
            encode(
                m.Push(membership.sequence, v, examples, loss, finite, membership.training.number, workload, recorded)
            )
            for v in versions
        ]
        nbytes = _bytes_of(gradients)
        membership.times.sent_bytes += nbytes
        if len(shares) == 1 or nbytes < AT_ONCE_BYTES:
            for (link, blocks, _), header in zip(shares, headers, strict=True):
                self._push_one(link, header, blocks, recorded=recorded)
        else:
            sends = [
                partial(self._push_one, link, header, blocks, recorded=recorded)
                for (link, blocks, _), header in zip(shares, headers, strict=True)
            ]
            membership.runtime.run_all(sends, "trainband-send")
        self._sent_at = membership.runtime.clock()
        membership.times.record("send", begin, self._sent_at)
        self._in_flight = True

    def assign(
        self, blocks: Sequence[Sequence[NDArray[Any]]], slices: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> Exchange:
        """Sets variables outside the updates, at once, whatever the rule. Returns the params afterwards.

        If a ps is lost meanwhile, an addition may be lost with it; it is never made twice.

        Args:
          blocks: of each ps, in the layout of its params.
          slices: for each ps, the slices that get these values, and those that these are added to.
        """
        self.drain()
        for link, values, (replaced, added) in zip(self._links, blocks, slices, strict=True):
            link.asked = ()
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
            link.broken = exc  # `_receive` handles it once the others have theirs

    def push(
        self,
        gradients: Sequence[Sequence[NDArray[Any]]],
        versions: Sequence[int],
        *,
        loss: float,
        examples: int,
        finite: bool,
    ) -> Exchange:
        """Calls `send`, then `collect`."""
        self.send(gradients, versions, loss=loss, examples=examples, finite=finite)
        return self.collect()

    def drain(self) -> Exchange | None:
        """Collects the answers to a push in flight; `None` without one."""
        return self.collect() if self._in_flight else None

    def collect(self) -> Exchange:
        """Waits for all answers to the last push."""
        self._in_flight = False
        begin = self._membership.runtime.clock()
        exchange = self._collect("the answer to a push")
        self._membership.times.received_bytes += _bytes_of((*exchange.params, *exchange.rows))
        self._record_times(begin)
        return exchange

    def _record_times(self, begin: float) -> None:
        """Divides the time since `begin`, spent waiting for all answers, between the ps and the network.

        The worker waited for the push held longest; with overlap, some of that time was hidden.
        """
        times, now = self._membership.times, self._membership.runtime.clock()
        waited_s = now - begin
        hidden_s = max(0.0, begin - self._sent_at)
        held_s = min(waited_s, max(0.0, self._held_s - hidden_s))
        times.ps += held_s
        times.network += waited_s - held_s
        if times.recorder is not None:
            times.recorder.span("wait", begin, now)

    def _record_push(self, link: Link, answer: m.Params, blocks: Blocks) -> None:
        """Records when a recorded push was begun, sent and answered."""
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
        rows: list[Blocks] = []
        clock, several = self._membership.runtime.clock, len(self._links) > 1
        begin = clock() if several else 0.0
        for place, link in enumerate(self._links):
            lineage, self._unanswered = link.lineage, self._links[place + 1 :]
            answer, blocks = self._receive(link, what)
            if several:
                end = max(begin, self._answered_at)
                self._membership.times.record_wait(link.name, begin, end)
                begin = end
            if link.index in self._sends:
                self._record_push(link, answer, blocks)
            self._held_s = max(self._held_s, answer.held_s)
            restarted = restarted or link.lineage != lineage
            # All ps divide alike unless they see a worker leave at different steps: only the first one's counts.
            share = share if params else answer.share
            params.append(blocks[: len(self._membership.plan.layout.shards[link.index].blocks)])
            rows.append(blocks[len(params[-1]) :])
            versions.append(answer.version)
            staleness = max(staleness, answer.staleness)
            applied = applied and answer.outcome == m.APPLIED
            done = done and answer.done
            if answer.outcome == m.NON_FINITE:
                refusal = answer.detail
            if answer.worker_state:
                worker_state = self._membership.sequence - answer.worker_state
        self.now = Exchange(
            tuple(params),
            tuple(versions),
            staleness,
            applied,
            restarted,
            done,
            refusal,
            worker_state,
            share,
            tuple(rows),
        )
        return self.now

    def _receive(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        """Returns the answer to the last request. Waits for a ps that has gone if the job recovers."""
        died = False
        while True:
            try:
                answer, blocks = self._answer(link, what)
                link.request = _ANSWERED  # the memory of a gradient that need not be sent again is free
                return (structs.replace(answer, outcome=m.DROPPED) if died else answer), blocks
            except StreamClosed as exc:
                if not self._membership.recovers:
                    raise _lost(link, exc) from None
                moved = isinstance(exc, _Moved)
                self._log.info("%s %s: %s", "another ps holds the shard of" if moved else "lost", link, exc)
                if not moved:
                    self._membership.say(f"lost {link} ({exc}); {self._membership.task} resumes when it returns")
            self._urgency.set(True)
            died = self._is_back(link, moved=moved) or died
            self._urgency.set(False)

    def _answer(self, link: Link, what: str) -> tuple[m.Params, Blocks]:
        answer, body = self._message(link, what)
        return answer, link.blocks(self._membership.plan, body, is_narrow=answer.is_narrow)

    def _message(self, link: Link, what: str) -> tuple[m.Params, tuple[Bytes, ...]]:
        if link.broken is not None:
            raise link.broken
        stream = self._stream(link)
        frame = self._next_frame(link, stream)
        if frame is None:
            self._urgency.set(self._membership.standbys > 0)
            waiting = self._membership.waiting(self._timeouts.stall_s)
            advice = "check that it is not overloaded or stopped, or raise Timeouts.stall_s"
            while frame is None:
                if self._cluster_view.is_superseded(link):
                    raise StreamClosed(f"another ps holds shard {link.index} now.")
                awaited = self._awaited(link, what, waiting)
                if self._cluster_view.silent_s(link.ps) > PREEMPTED_WAIT_S:
                    self._membership.check(waiting, awaited, advice)
                else:
                    waiting.check(awaited, advice)
                frame = self._next_frame(link, stream)
            self._membership.blocked_by = ()
            self._urgency.set(False)
        link.suspected_at, link.cut = None, False
        answer: m.Downward = decode_any(frame.header, m.Downward, str(link))
        if isinstance(answer, m.Failure):
            refused = Refused(f"{link} refused: {answer.message}", answer.code)
            if self._membership.recovers and refused.is_for_another:
                raise (_Moved if answer.code is RefusalCode.MOVED else StreamClosed)(answer.message)
            raise refused
        return answer, frame.body

    def _next_frame(self, link: Link, stream: Stream) -> Frame | None:
        """Waits a heartbeat for a ps's frame; receives large ones of the others at the same time.

        Otherwise these would stand still while gigabytes of the first arrive, and a ps gives up a worker that takes
        nothing for `Timeouts.stall_s`.
        """
        clock = self._membership.runtime.clock
        arrived = self._arrived.pop(link.index, None)
        if arrived is None:
            others = [
                (other.index, other.stream)
                for other in (self._unanswered if self._is_large else ())
                if other.stream is not None and other.broken is None and other.index not in self._arrived
            ]
            if not others:
                frame = stream.receive(self._timeouts.heartbeat_s)
                self._answered_at = clock()
                return frame
            receive = [partial(self._receive_early, *other) for other in others]
            first = partial(self._receive_early, link.index, stream, raises=True)
            self._membership.runtime.run_all([first, *receive], "trainband-receive")
            arrived = self._arrived.pop(link.index, None)
        frame, self._answered_at = (None, clock()) if arrived is None else arrived
        return frame

    def _receive_early(self, shard: int, stream: Stream, *, raises: bool = False) -> None:
        try:
            frame = stream.receive(self._timeouts.heartbeat_s)
        except PeerError:
            if raises:
                raise
            return  # the next `receive` raises it again
        if frame is not None:
            self._arrived[shard] = frame, self._membership.runtime.clock()

    def _is_back(self, link: Link, *, moved: bool) -> bool:
        """Waits for a ps that is gone and resends the last request; returns whether the ps had died.

        A live ps recognises by its number a push that it has handled. One that died has the values of the last
        checkpoint and cannot place the push: it is asked for its params, and the push is lost there.

        `moved`: the ps reported that another one holds the shard.
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
            link.request = encode(m.Pull()), link.asked
        try:
            self._finder.open(link).send(*link.request)
        except (StreamClosed, Unreachable, DeadlineExceeded) as exc:
            link.broken = StreamClosed(str(exc))
        else:
            news = "is back" if link.ps == before else f"has shard {link.index} now"
            self._membership.say(f"{link} {news}" + (", with the values of the last checkpoint" if died else ""))
        return died

    def _awaited(self, link: Link, what: str, waiting: Waiting) -> str:
        """Returns what this worker waits for: the ps, or workers that the ps waits for; these may take long."""
        if len(link.places) > 1 and self._urgency.is_silent(link):
            self._membership.blocked_by = ()
            return f"{link} to send {what}"  # asking it would only delay this worker's move to its successor
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
    """The ps says that another one holds the shard."""


def _bytes_of(shards: Sequence[Sequence[NDArray[Any]]]) -> int:
    return sum(block.nbytes for blocks in shards for block in blocks)


def _lost(link: Link, exc: StreamClosed) -> StreamClosed:
    """Returns the error for a stream that ended: which task, and what to do."""
    return StreamClosed(f"{link.name} has gone: {exc} Check the last lines of its log and restart the job.")
