"""The simulated network: control calls and streams that are late, lost, doubled, cut off and broken by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.process import Future, Process
from tests.simulation.scheduler import Scheduler
from trainband.errors import DeadlineExceeded, Refused, StreamClosed, Unreachable

LATENCY_S = (0.001, 0.02)
SPIKE_S = (0.1, 1.5)
BREAK_SEEN_S = (0.02, 6.0)
"""After a break, each end learns of it in so many seconds, on its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """How bad the network is, in probabilities for each message."""

    lost_call: float = 0.0
    doubled_call: float = 0.0
    broken_stream: float = 0.0
    slow: float = 0.0


CALM = Weather()


class Server(Protocol):
    """What answers calls and streams at an address; both name the seat that they are for."""

    process: Process

    def call(self, seat: int, action: str, letter: Any) -> Any:
        """Answers one call, or gives a coroutine that does so later. Raises `Refused`."""
        ...

    def accept(self, seat: int, end: End) -> None:
        """Takes a new stream: sets `on_frame` and `on_end`."""
        ...


class End:
    """One end of a stream. What is sent arrives in order, up to the first message that is lost, or not at all."""

    def __init__(self, network: Network, owner: Process) -> None:
        self.network = network
        self.owner = owner
        self.other: End = self
        self.closed = False
        self.keeps = False
        """Whether the other end has what is sent at once: the two share memory."""
        self.refuses = False
        self.on_frame: Callable[[Any], None] = _ignore
        self.on_end: Callable[[], None] = _nothing
        self.sent = 0
        self.arrived = 0
        self.lost_from: int | None = None
        self.free_at = 0.0

    def send(self, frame: Any) -> None:
        """Raises `StreamClosed` only if this end knows already; where the stream keeps, it always does."""
        if not self.alive:
            raise StreamClosed(f"{self.owner} has no stream any more")
        self.network.carry_frame(self, frame)

    @property
    def alive(self) -> bool:
        """Whether the other end is still there, as far as this one knows."""
        other = self.other
        return not (self.closed or (self.keeps and (other.closed or other.refuses or not other.owner.alive)))

    def refuse_more(self) -> None:
        """See `trainband.wire.transport.Stream.refuse_more`; of a stream that keeps."""
        if not self.refuses:
            self.refuses = True
            self.network.end_after_all(self)

    def close(self) -> None:
        """Ends it from here; what was sent before still arrives."""
        if not self.closed:
            self.closed = True
            self.network.carry_end(self)

    def end(self) -> None:
        """The stream has ended, and this end learns it."""
        if not self.closed:
            self.closed = True
            self.on_end()


def _ignore(frame: Any) -> None:
    """For an end that does not listen yet."""


def _nothing() -> None:
    """For an end that does not care."""


class Network:
    """Carries everything between processes, late and maybe never."""

    def __init__(self, scheduler: Scheduler, dice: random.Random) -> None:
        self.weather = CALM
        self._scheduler = scheduler
        self._dice = dice
        self.one_machine = False
        """Whether all ps run on one machine, so that the streams between them keep what is sent."""
        self.say: Callable[[str], None] | None = None
        """Is told every message, for a trace."""
        self._servers: dict[str, Server] = {}
        self._cut_until: dict[tuple[str, str], float] = {}
        self._ends: list[End] = []

    # --- the faults

    def cut(self, source: str, target: str, until_s: float) -> None:
        """Nothing gets from one task to the other until then."""
        self._cut_until[source, target] = max(until_s, self._cut_until.get((source, target), 0.0))

    def heal(self) -> None:
        """The network is well from now on."""
        self._cut_until.clear()
        self.weather = CALM

    def break_one(self) -> None:
        """Breaks a stream, if there is one."""
        open_ends = [end for end in self._ends if not (end.closed or end.keeps)]
        if open_ends:
            self.break_stream(self._dice.choice(open_ends))

    # --- control calls

    def serve(self, address: str, server: Server) -> None:
        """Has this server answer at the address from now on."""
        self._servers[address] = server

    def call(self, caller: Process, address: str, seat: int, action: str, letter: Any, timeout_s: float) -> Future[Any]:
        """One request and its answer.

        Raises (when awaited):
          Unreachable: no process is there.
          DeadlineExceeded: no answer came in time; whether the request arrived nobody knows.
          Refused: by the server.
        """
        future: Future[Any] = Future()
        server = self._servers.get(address)
        doubled = self._dice.random() < self.weather.doubled_call
        for _ in range(1 + doubled):
            self._carry(
                caller.name, address, lambda: self._serve(caller, address, server, seat, action, letter, future)
            )
        late = DeadlineExceeded(f"{address} gave no answer to {action} in {timeout_s} s")
        self._scheduler.after(timeout_s, lambda: future.fail(late))
        return future

    def _serve(
        self,
        caller: Process,
        address: str,
        server: Server | None,
        seat: int,
        action: str,
        letter: Any,
        future: Future[Any],
    ) -> None:
        if server is None or not server.process.alive:
            # A connection belongs to one life of a server: the next life never sees what was sent to this one.
            self._carry(address, caller.name, lambda: future.fail(Unreachable(f"nobody answers at {address}")))
            return

        def handle() -> None:
            if self.say is not None:
                self.say(f"{caller} calls {address}#{seat} {action} {letter}")
            server.process.spawn(answer())

        async def answer() -> None:
            try:
                answered = server.call(seat, action, letter)
                if isinstance(answered, Coroutine):  # it takes its time
                    answered = await answered
            except Refused as refusal:
                if self.say is not None:
                    self.say(f"{address}#{seat} refuses {caller} {action}: {refusal}")
                # An error is raised where it is awaited: each needs its own.
                text = str(refusal)
                self._carry(address, caller.name, lambda: future.fail(Refused(text)))
            except StreamClosed:
                return  # it will never be answered
            else:
                self._carry(address, caller.name, lambda: future.resolve(answered))

        server.process.receive(handle)

    def _carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if self.is_cut(source, target) or self._dice.random() < self.weather.lost_call:
            if self.say is not None:
                self.say(f"a call or answer from {source} to {target} is lost")
            return
        self._scheduler.after(self._latency(), deliver)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets through now."""
        return self._cut_until.get((source, target), 0.0) > self._scheduler.now

    def _latency(self) -> float:
        if self.weather.slow and self._dice.random() < self.weather.slow:
            return self._dice.uniform(*SPIKE_S)
        return self._dice.uniform(*LATENCY_S)

    # --- streams

    def open_stream(self, caller: Process, address: str, seat: int, timeout_s: float) -> Future[End]:
        """Gives the caller's end. Raises as `call` does."""
        future: Future[End] = Future()
        server = self._servers.get(address)

        def arrive() -> None:
            if server is None or not server.process.alive:
                self._carry(address, caller.name, lambda: future.fail(Unreachable(f"nobody answers at {address}")))
            else:
                server.process.receive(accept)

        def accept() -> None:
            assert server is not None
            near, far = End(self, caller), End(self, server.process)
            near.other, far.other = far, near
            near.keeps = far.keeps = self.one_machine and all(name.startswith("ps") for name in (caller.name, address))
            for end in (near, far):
                end.owner.on_death.append(end.close)
                self._ends.append(end)
            if len(self._ends) > 64:
                self._ends = [end for end in self._ends if not end.closed]
            server.accept(seat, far)
            if future.done or not caller.alive:
                near.close()
            else:
                self._carry(address, caller.name, lambda: self._opened(near, future))
                self._scheduler.after(timeout_s + BREAK_SEEN_S[1], lambda: None if future.done else near.close())

        self._carry(caller.name, address, arrive)
        late = DeadlineExceeded(f"{address} opened no stream in {timeout_s} s")
        self._scheduler.after(timeout_s, lambda: future.fail(late))
        return future

    def _opened(self, near: End, future: Future[End]) -> None:
        if future.done or not near.owner.alive:
            near.close()
        else:
            future.resolve(near)

    def carry_frame(self, end: End, frame: Any) -> None:
        """Sends a frame to the other end, if nothing was lost before it."""
        number, end.sent = end.sent, end.sent + 1
        if end.lost_from is not None:
            return
        cut_until = 0.0 if end.keeps else self._cut_until.get((end.owner.name, end.other.owner.name), 0.0)
        is_cut = cut_until > self._scheduler.now
        breaks = 0.5 if is_cut else 0.0 if end.keeps else self.weather.broken_stream
        if self._dice.random() < breaks:
            end.lost_from = number
            self.break_stream(end)
            return
        # Where it is cut and not broken, the frame is sent again and again, as TCP does, until it gets through.
        start = max(end.free_at, cut_until if is_cut else 0.0, self._scheduler.now)
        end.free_at = start + self._latency()

        def deliver() -> None:
            if end.lost_from is None or number < end.lost_from:
                end.arrived += 1
                end.other.owner.receive(lambda: self._arrive(end.other, frame))

        self._scheduler.at(end.free_at, deliver)

    def _arrive(self, end: End, frame: Any) -> None:
        if end.closed:
            return
        if self.say is not None:
            self.say(f"{end.owner} gets from {end.other.owner}: {frame}")
        end.on_frame(frame)

    def carry_end(self, end: End) -> None:
        """Tells the other end that this one has closed."""
        cut = not end.keeps and self.is_cut(end.owner.name, end.other.owner.name)
        delay_s = self._dice.uniform(*BREAK_SEEN_S) if cut else self._latency()
        at = max(end.free_at, self._scheduler.now + delay_s)
        self._scheduler.at(at, lambda: end.other.owner.receive(end.other.end))

    def end_after_all(self, end: End) -> None:
        """Ends a stream at its receiver once all that was sent to it has come."""
        at = max(end.other.free_at, self._scheduler.now)
        self._scheduler.at(at, lambda: end.owner.receive(end.end))

    def break_stream(self, end: End) -> None:
        """Breaks a stream: of what is under way a part arrives; each end learns of the break in its own time."""
        if self.say is not None:
            self.say(f"the stream between {end.owner} and {end.other.owner} breaks")
        for one in (end, end.other):
            if one.lost_from is None:
                one.lost_from = self._dice.randint(one.arrived, one.sent)
            spread = BREAK_SEEN_S if self._dice.random() < 0.3 else LATENCY_S
            self._scheduler.after(self._dice.uniform(*spread), lambda one=one: one.owner.receive(one.end))  # type: ignore[misc]
