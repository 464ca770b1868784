"""The seam between trainband and whatever carries its bytes.

A transport carries two things: control calls (`Connection.call`: one request, one answer, small) and
streams (`Connection.open_stream`: a long-lived, ordered, two-way flow of frames, where a training step
is one frame up and one frame down). Each implementation stands in a file of its own beside this one and
passes the contract suite in `tests/wire/test_transport_contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..cluster.identity import Identity, Role
from ..errors import RefusalCode, Refused

Bytes = NDArray[np.uint8]
"""Raw bytes as a one-dimensional uint8 array."""

BODY_ALIGNMENT = 64
"""Bytes. Every array of a body starts on such a boundary at the receiver, because JAX on the CPU uses
memory with this alignment as it is and copies any other."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a stream.

    Attributes:
      header: the encoded record that says what this frame is.
      body: raw bytes of each array that came with it, 64-byte aligned. BORROWED: they are overwritten
        by the next `receive` on the same stream, so whoever wants to keep them copies them.
    """

    header: bytes
    body: tuple[Bytes, ...] = ()


class Stream(Protocol):
    """One end of an ordered two-way flow of frames. One thread may send while another receives.

    Attributes:
      most_bytes: the largest body that is received: a frame that has more, or says so, ends the stream before any
        memory is taken for it.
    """

    most_bytes: int

    @property
    def peer(self) -> str:
        """Who is at the other end, for messages to people, such as `10.0.0.7:2222`."""
        ...

    @property
    def transport(self) -> str:
        """How the bytes travel: `flight`, `shared memory` or `memory`."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the other end is still there, as far as it can be told without receiving."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the other end has a frame once `send` has returned, whatever becomes of this process: the memory of
        one machine holds it until it is received. So `refuse_more` draws a sharp line.
        """
        ...

    @property
    def silent_s(self) -> float:
        """For how long who receives here has waited without a sign of life from the other end; 0 where nobody waits,
        and where no network is in between that could keep it.
        """
        ...

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        """Sends one frame. The arrays are C-contiguous and are free for reuse when this returns.

        Raises:
          StreamClosed: the other end has gone.
          DeadlineExceeded: the other end has taken nothing for `Timeouts.stall_s`.
        """
        ...

    def receive(self, timeout_s: float) -> Frame | None:
        """Waits for the next frame, `None` when none has come in `timeout_s` seconds.

        Raises:
          StreamClosed: the other end has closed or died, and every frame it had sent was received.
        """
        ...

    def refuse_more(self) -> None:
        """Has every `send` of the other end raise `StreamClosed` from now on. Waits for nothing, from any thread.

        Where the stream `keeps` frames, those that were sent before are still received, and then `receive` raises;
        else the stream ends at once.
        """
        ...

    def close(self) -> None:
        """Ends the stream: the other end receives what was sent, then `StreamClosed`. Idempotent."""
        ...

    def interrupt(self) -> None:
        """Ends the stream at once, from any thread: what waits in it raises `StreamClosed`, now or at its timeout."""
        ...


class Connection(Protocol):
    """A client's way to one listener. Thread-safe."""

    @property
    def address(self) -> str: ...

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        """One control request and its answer.

        Raises:
          Unreachable: nobody listens there.
          UnknownHost: the host name of the address cannot be resolved.
          DeadlineExceeded: no answer in `timeout_s` seconds.
          Refused: the handler raised; the message is the handler's.
          AuthenticationError: one of the two has not proved that it belongs to the job.
        """
        ...

    def open_stream(self, *, timeout_s: float) -> Stream:
        """Opens a stream that the listener's `Handler.stream` will serve.

        Raises:
          Unreachable, DeadlineExceeded: as for `call`.
        """
        ...

    def close(self) -> None:
        """Closes the connection and every stream opened by it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A variable as the public face shows it: rows are the first axis; `read` gives the whole value."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[tuple[int, int, str], ...]
    """(first row, end row, address) of each slice: where `DoGet` answers for it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call or has opened a stream, as far as the transport knows.

    Attributes:
      peer: the connection, for messages.
      identity: who has proved itself on it; `None` where nobody has to.
    """

    peer: str = ""
    identity: Identity | None = None

    def require(self, roles: frozenset[Role], doing: str) -> None:
        """Raises `Refused` where the caller has none of these roles."""
        if self.identity is not None and not roles & self.identity.roles:
            wanted = " or ".join(sorted(roles))
            raise Refused(f"{self.identity.name} may not {doing}: that takes the role {wanted}.", RefusalCode.FORBIDDEN)

    def require_self(self, name: str, incarnation: str, doing: str) -> None:
        """Raises `Refused` where the caller speaks for another process than its own."""
        mine = self.identity
        if mine is not None and (name, incarnation) != (mine.name, mine.incarnation):
            whom = name if name != mine.name else f"another process of {name}"
            raise Refused(f"{mine.name} may not {doing} in the name of {whom}.", RefusalCode.FORBIDDEN)


ANYBODY = Caller()
"""The caller where nobody has to prove who he is: within one process, or without security."""


class Handler(Protocol):
    """What a listener serves. Called from the transport's own threads, several at a time."""

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """Answers a control request; a `TrainbandError` raised here reaches the caller as `Refused`."""
        ...

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """Serves one stream, until it is closed or the listener stops; then returns."""
        ...

    def tensors(self) -> Sequence[Tensor]:
        """The variables, for clients that only look."""
        ...

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        """The rows of one variable that this task has: (first row, values). Raises `Refused` for an unknown name."""
        ...


class Listener(Protocol):
    """A task's open door."""

    @property
    def address(self) -> str:
        """The address as clients reach it; with port 0 asked for, the port that was given."""
        ...

    def stop(self, grace_s: float) -> None:
        """Stops taking calls, waits up to `grace_s` seconds for open streams to end, then cuts them. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """How long to wait for what, in seconds."""

    connect_s: float = 10.0
    """For a peer's first answer."""
    resolve_s: float = 30.0
    """For a peer's host name to become known, before this task has joined the job."""
    call_s: float = 10.0
    """For the answer to one control call."""
    stall_s: float = 60.0
    """For a peer that is alive to take or to give the next bytes of a stream."""
    heartbeat_s: float = 1.0
    """Between two signs of life of an idle worker."""
    lease_s: float = 10.0
    """Without any sign of life after which a worker counts as gone."""
    start_s: float = 300.0
    """For all the tasks of a job to come up and for the chief to initialise it."""
    grace_s: float = 3.0
    """For a task's open streams to end when it stops."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"Timeouts.{name} must be > 0 seconds, got {value}.")
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"Timeouts.lease_s must be at least twice heartbeat_s, got lease_s={self.lease_s} "
                f"with heartbeat_s={self.heartbeat_s}: one late heartbeat would end a worker's lease."
            )


class Transport(Protocol):
    """One way to carry bytes between tasks."""

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        """Serves `handler` at `host:port` (port 0: any free one).

        Raises:
          AddressInUse: another process has the port.
          ClusterError: the address is not one of this machine.
        """
        ...

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        """A connection to a listener. Does not wait: the first call finds out whether anybody is there."""
        ...

    def speaking_as(self, identity: Identity) -> Transport:
        """The same way to carry bytes, for a task that is called this."""
        ...
