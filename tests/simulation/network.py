"""The simulated network: control calls and streams that are late, lost, doubled, cut off and broken by a seed."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.simulation.process import Process, sleep
from tests.simulation.scheduler import Action, Scheduler
from trainband.cluster.identity import Identity
from trainband.errors import (
    AddressInUse,
    DeadlineExceeded,
    NobodyListens,
    RefusalCode,
    Refused,
    StreamClosed,
    TrainbandError,
)
from trainband.wire.arena import Arena
from trainband.wire.frame import Frame
from trainband.wire.handling import answer, closed_here, ended, serve, stopping, vanished
from trainband.wire.transport import ANYBODY, Caller, Handler, Timeouts

LATENCY_S = (0.001, 0.02)
SPIKE_S = (0.1, 1.5)
BREAK_SEEN_S = (0.02, 6.0)
"""After a break, each end learns of it in so many seconds, on its own."""

Carried = tuple[bytes, tuple[bytes, ...]]
"""A frame under way: its header and its arrays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """How bad the network is, in probabilities for each message."""

    lost_call: float = 0.0
    doubled_call: float = 0.0
    broken_stream: float = 0.0
    slow: float = 0.0


CALM = Weather()


class Future:
    """The answer to a call, for which one thread waits. The first one counts; later ones are forgotten."""

    def __init__(self, caller: Process) -> None:
        self.caller = caller
        self.done = False
        self._value: Any = None
        self._error: Exception | None = None
        self._wakes: list[Action] = []

    def resolve(self, value: Any, error: Exception | None = None) -> None:
        """Makes it known to the caller, if that still lives."""

        def settle() -> None:
            if not self.done:
                self.done, self._value, self._error = True, value, error
                for wake in self._wakes:
                    wake()

        self.caller.receive(settle)

    def result(self, timeout_s: float | None, late: str = "") -> Any:
        """Waits for it. Raises `DeadlineExceeded` where it is late."""
        if not self.done:
            sleep(self.caller, timeout_s, self._wakes)
        if not self.done:
            self.done = True
            raise DeadlineExceeded(late)
        if self._error is not None:
            raise self._error
        return self._value


class End:
    """One end of a stream; see `trainband.wire.transport.Stream`. What is sent arrives in order, up to the first frame
    that is lost, or not at all.
    """

    transport = "simulated"
    most_bytes = 0

    def __init__(self, network: Network, owner: Process, *, outlives_sender: bool) -> None:
        self.network = network
        self.owner = owner
        self.other: End = self
        self.outlives_sender = outlives_sender
        self.closed = False
        """Whether this end has closed it."""
        self.over = ""
        """Why the other end has, once this one has learnt of it."""
        self.refuses = False
        self.sent = 0
        self.arrived = 0
        self.delivered = 0
        """Frames that have come to this end."""
        self.lost_from: int | None = None
        self.free_at = 0.0
        self._frames: deque[Carried] = deque()
        self._arena = Arena()
        self._wakes: list[Action] = []
        self._waits_since: float | None = None
        self._born = network.scheduler.now

    @property
    def peer(self) -> str:
        return self.other.owner.name

    @property
    def alive(self) -> bool:
        other = self.other
        gone = self.outlives_sender and (other.closed or other.refuses or not other.owner.alive)
        return not (self.closed or self.over or gone)

    @property
    def silent_s(self) -> float:
        if self.outlives_sender or self._waits_since is None:
            return 0.0
        since = self.network.silent_since(self.other.owner, self.owner, self)
        return 0.0 if since is None else self.network.scheduler.now - max(since, self._waits_since)

    @property
    def moved_s(self) -> float:
        return math.inf  # a frame arrives as a whole

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        if self.closed:
            raise closed_here(self.peer)
        if not self.alive:
            raise vanished(self.peer)
        self.network.carry_frame(self, (bytes(header), tuple(np.ascontiguousarray(array).tobytes() for array in body)))

    def receive(self, timeout_s: float) -> Frame | None:
        if not self.closed and not self._frames and not self.over and not self.is_drained():
            self._waits_since = self.network.scheduler.now
            sleep(self.owner, timeout_s, self._wakes)
            self._waits_since = None
        if self.closed:
            raise closed_here(self.peer)
        if self._frames:
            header, body = self._frames.popleft()
            views = self._arena.views(tuple(map(len, body)))
            for view, array in zip(views, body, strict=True):
                view[...] = np.frombuffer(array, np.uint8)
            return Frame(header, views)
        if self.over:
            raise StreamClosed(self.over)
        if self.is_drained():
            raise stopping("this end")
        return None

    def is_drained(self) -> bool:
        """Whether it refuses more, and has given everything that was sent before."""
        return self.refuses and (not self.outlives_sender or (not self._frames and self.delivered == self.other.sent))

    def refuse_more(self) -> None:
        self.refuses = True
        if not self.outlives_sender:
            self.closed = True
            self.network.carry_end(self, "it takes no more")
        self.wake()

    def close(self, reason: str = "") -> None:
        if not self.closed:
            self.closed = True
            self.network.carry_end(self, reason)
            self.wake()

    def interrupt(self) -> None:
        self.close()

    # --- what the network does

    def deliver(self, frame: Carried) -> None:
        """A frame has come."""
        self.delivered += 1
        if not self.closed:
            self._frames.append(frame)
            self.wake()

    def end(self, why: str) -> None:
        """The stream has ended, and this end learns it; what has come before is still received."""
        if not self.over:
            self.over = why
            self.wake()

    def wake(self) -> None:
        """Has whoever waits in `receive` look again."""
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()


class Listening:
    """An address that is served; see `trainband.wire.transport.Listener`."""

    def __init__(self, network: Network, process: Process, address: str, handler: Handler) -> None:
        self.address = address
        self.process = process
        self.handler = handler
        self.open = True
        self._network = network
        self._streams: dict[End, None] = {}

    def answer(self, action: str, body: bytes, reply: Callable[[bytes | Exception], None]) -> None:
        """Answers a call in a thread of its own."""

        def work() -> None:
            try:
                reply(answer(_Watched(self), action, body, self.address))
            except Refused as exc:
                reply(exc)

        self.process.thread(work, f"call {action}").start()

    def serve(self, end: End) -> None:
        """Serves a stream in a thread of its own."""

        def work() -> None:
            try:
                end.close(serve(_Watched(self), end, self.address))
            finally:
                self._streams.pop(end, None)

        self._streams[end] = None
        self.process.thread(work, f"stream of {end.peer}").start()

    def stop(self, grace_s: float) -> None:
        """Takes no more calls; open streams get so long to end."""
        self.open = False
        for end in list(self._streams):
            end.refuse_more()
        deadline = self.process.clock() + grace_s
        while self._streams and self.process.clock() < deadline:
            sleep(self.process, 0.1)
        for end in list(self._streams):
            end.close(f"{self.address} has stopped.")


class _Watched:
    """A handler whose errors that are none of trainband's are noted: they are defects."""

    def __init__(self, listening: Listening) -> None:
        self._handler = listening.handler
        self._failed = listening._network.failed  # noqa: SLF001
        self._process = listening.process
        self.tensors, self.read = self._handler.tensors, self._handler.read

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        try:
            return self._handler.call(action, body, caller)
        except TrainbandError:
            raise
        except Exception as exc:
            self._failed(self._process, f"call {action}", exc)
            raise Refused(f"internal error: {exc}") from exc

    def stream(self, stream: Any, caller: Caller = ANYBODY) -> None:
        try:
            self._handler.stream(stream, caller)
        except TrainbandError:
            raise
        except Exception as exc:
            self._failed(self._process, f"stream of {stream.peer}", exc)
            raise Refused(f"internal error: {exc}") from exc


class Connecting:
    """A process's way to one address; see `trainband.wire.transport.Connection`."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.address = address
        self._network = network
        self._process = process
        self._streams: list[End] = []
        self._closed = False

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        if self._closed:
            raise closed_here(self.address)
        future = self._network.call(self._process, self.address, action, bytes(body))
        answered: bytes = future.result(timeout_s, f"{self.address} gave no answer to {action!r} in {timeout_s} s.")
        return answered

    def open_stream(self, *, timeout_s: float) -> End:
        if self._closed:
            raise closed_here(self.address)
        future = self._network.open_stream(self._process, self.address)
        try:
            end: End = future.result(timeout_s, f"{self.address} opened no stream in {timeout_s} s.")
        finally:
            self._network.given_up(future)
        self._streams.append(end)
        return end

    def close(self) -> None:
        self._closed = True
        for end in self._streams:
            end.close()


class TaskTransport:
    """See `trainband.wire.transport.Transport`: that of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listening:
        del timeouts
        return self._network.listen(self._process, address, handler)

    def connect(self, address: str, timeouts: Timeouts) -> Connecting:
        del timeouts
        return Connecting(self._network, self._process, address)

    def speaking_as(self, identity: Identity) -> TaskTransport:
        del identity
        return self


class Network:
    """Carries everything between processes, late and maybe never."""

    def __init__(self, scheduler: Scheduler, dice: random.Random) -> None:
        self.weather = CALM
        self.scheduler = scheduler
        self._dice = dice
        self.say: Callable[[str], None] | None = None
        """Is told every message, for a trace."""
        self.failed: Callable[[Process, str, Exception], None] = lambda *_: None
        """Is told of every error of a handler that should not be."""
        self._listening: dict[str, Listening] = {}
        self._cuts: dict[tuple[str, str], tuple[float, float]] = {}
        self._ends: list[End] = []
        self._opened: dict[Future, End] = {}

    # --- the faults

    def cut(self, source: str, target: str, until_s: float) -> None:
        """Nothing gets from one task to the other until then."""
        now = self.scheduler.now
        since, until = self._cuts.get((source, target), (now, 0.0))
        self._cuts[source, target] = (since if until > now else now), max(until_s, until)

    def heal(self) -> None:
        """The network is well from now on."""
        self._cuts.clear()
        self.weather = CALM

    def break_one(self) -> None:
        """Breaks a stream, if there is one."""
        open_ends = [end for end in self._ends if not (end.closed or end.over or end.outlives_sender)]
        if open_ends:
            self.break_stream(self._dice.choice(open_ends))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets through now."""
        return self._cut_until(source, target) > self.scheduler.now

    def _cut_until(self, source: str, target: str) -> float:
        return self._cuts.get((source, target), (0.0, 0.0))[1]

    def silent_since(self, source: Process, target: Process, end: End) -> float | None:
        """Since when no sign of life gets from one process to another; `None` where they do."""
        if not source.alive:
            return source.died_at or 0.0
        if source.paused_at is not None:
            return source.paused_at
        if self.is_cut(source.name, target.name):
            return self._cuts[source.name, target.name][0]
        if end.other.free_at > self.scheduler.now + SPIKE_S[1]:  # TCP waits before it tries again
            return self._cuts.get((source.name, target.name), (self.scheduler.now, 0.0))[0]
        return None

    # --- control calls

    def listen(self, process: Process, address: str, handler: Handler) -> Listening:
        """Has this handler answer at the address from now on.

        Raises:
          AddressInUse: another process that lives has it.
        """
        holder = self._listening.get(address)
        if holder is not None and holder.open and holder.process.alive:
            raise AddressInUse(f"{address} is taken.")
        self._listening[address] = listening = Listening(self, process, address, handler)
        return listening

    def call(self, caller: Process, address: str, action: str, body: bytes) -> Future:
        """One request; the answer may come twice, late or never."""
        future = Future(caller)
        server, target = self._listening.get(address), address.partition(":")[0].replace("-", ":")
        for _ in range(1 + (self._dice.random() < self.weather.doubled_call)):
            self._carry(caller.name, target, lambda: self._serve(caller, target, server, action, body, future))
        return future

    def _serve(
        self, caller: Process, target: str, server: Listening | None, action: str, body: bytes, future: Future
    ) -> None:
        if server is None or not (server.open and server.process.alive):
            # A connection belongs to one life of a server: the next life never sees what was sent to this one.
            gone = NobodyListens(f"nobody listens at {target}.")
            self._carry(target, caller.name, lambda: future.resolve(None, gone))
            return

        def reply(answered: bytes | Exception) -> None:
            if isinstance(answered, bytes):
                self._carry(target, caller.name, lambda: future.resolve(answered))
                return
            if self.say is not None:
                self.say(f"{target} refuses {caller} {action}: {answered}")
            # An error is raised where it is awaited: each needs its own.
            code = answered.code if isinstance(answered, Refused) else RefusalCode.OTHER
            self._carry(target, caller.name, lambda: future.resolve(None, Refused(str(answered), code)))

        def handle() -> None:
            if self.say is not None:
                self.say(f"{caller} calls {target} {action}")
            server.answer(action, body, reply)

        server.process.receive(handle)

    def _carry(self, source: str, target: str, deliver: Action) -> None:
        if self.is_cut(source, target) or self._dice.random() < self.weather.lost_call:
            if self.say is not None:
                self.say(f"a call or answer from {source} to {target} is lost")
            return
        self.scheduler.after(self._latency(), deliver)

    def _latency(self) -> float:
        if self.weather.slow and self._dice.random() < self.weather.slow:
            return self._dice.uniform(*SPIKE_S)
        return self._dice.uniform(*LATENCY_S)

    # --- streams

    def open_stream(self, caller: Process, address: str) -> Future:
        """Gives the caller's end."""
        future = Future(caller)
        server, target = self._listening.get(address), address.partition(":")[0].replace("-", ":")

        def arrive() -> None:
            if server is None or not (server.open and server.process.alive):
                gone = NobodyListens(f"nobody listens at {target}.")
                self._carry(target, caller.name, lambda: future.resolve(None, gone))
            else:
                server.process.receive(accept)

        def accept() -> None:
            assert server is not None
            # Two ps of one machine share memory; workers do not, or the network between them would have no faults.
            outlives_sender = caller.host == server.process.host and caller.name.startswith("ps")
            near, far = (
                End(self, caller, outlives_sender=outlives_sender),
                End(self, server.process, outlives_sender=outlives_sender),
            )
            near.other, far.other = far, near
            for end in (near, far):
                end.owner.on_death.append(end.close)
                self._ends.append(end)
            if len(self._ends) > 64:
                self._ends = [end for end in self._ends if not end.closed]
            server.serve(far)
            if future.done or not caller.alive:
                near.close()
                return
            self._opened[future] = near
            self._carry(target, caller.name, lambda: future.resolve(near))

        self._carry(caller.name, target, arrive)
        return future

    def given_up(self, future: Future) -> None:
        """Nobody waits for this stream any more: it ends if it was not taken."""
        end = self._opened.pop(future, None)
        if end is not None and future._value is not end:  # noqa: SLF001
            end.close()

    def carry_frame(self, end: End, frame: Carried) -> None:
        """Sends a frame to the other end, if nothing was lost before it."""
        number, end.sent = end.sent, end.sent + 1
        if end.lost_from is not None:
            return
        now = self.scheduler.now
        source, target = end.owner.name, end.other.owner.name
        is_cut = not end.outlives_sender and self.is_cut(source, target)
        breaks = 0.5 if is_cut else 0.0 if end.outlives_sender else self.weather.broken_stream
        if self._dice.random() < breaks:
            end.lost_from = number
            self.break_stream(end)
            return
        resent_at = self._resent_at(source, target) if is_cut else 0.0
        end.free_at = max(end.free_at, resent_at, now) + self._latency()

        def deliver() -> None:
            if end.lost_from is None or number < end.lost_from:
                end.arrived += 1
                end.other.owner.receive(lambda: end.other.deliver(frame))

        self.scheduler.at(end.free_at, deliver)

    def _resent_at(self, source: str, target: str) -> float:
        """When something leaves that is cut off, and is sent again and again, as TCP does, until it gets through: with
        pauses that grow, so that it may take as long again as the network was away.
        """
        cut_until = self._cut_until(source, target)
        return cut_until + self._dice.choice((0.0, self._dice.random() * (cut_until - self.scheduler.now)))

    def carry_surely(self, source: str, target: str, deliver: Action) -> None:
        """Carries what is sent over a connection that never breaks."""
        resent_at = self._resent_at(source, target) if self.is_cut(source, target) else 0.0
        self.scheduler.at(max(resent_at, self.scheduler.now) + self._latency(), deliver)

    def carry_end(self, end: End, reason: str) -> None:
        """Tells the other end that this one has closed."""
        cut = not end.outlives_sender and self.is_cut(end.owner.name, end.other.owner.name)
        delay_s = self._dice.uniform(*BREAK_SEEN_S) if cut else self._latency()
        at = max(end.free_at, self.scheduler.now + delay_s)
        why = str(ended(end.owner.name, reason)) if end.owner.alive else str(vanished(end.owner.name))
        self.scheduler.at(at, lambda: end.other.owner.receive(lambda: end.other.end(why)))

    def break_stream(self, end: End) -> None:
        """Breaks a stream: of what is under way a part arrives; each end learns of the break in its own time."""
        if self.say is not None:
            self.say(f"the stream between {end.owner} and {end.other.owner} breaks")
        for one in (end, end.other):
            if one.lost_from is None:
                one.lost_from = self._dice.randint(one.arrived, one.sent)
            spread = BREAK_SEEN_S if self._dice.random() < 0.3 else LATENCY_S
            why = str(vanished(one.peer))
            self.scheduler.after(
                self._dice.uniform(*spread),
                lambda one=one, why=why: one.owner.receive(lambda: one.end(why)),  # type: ignore[misc]
            )
