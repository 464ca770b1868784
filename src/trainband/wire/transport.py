"""The seam between trainband and the transports that carry its bytes.

A transport carries control calls (`Connection.call`: one request, one answer, small) and streams
(`Connection.open_stream`: a long-lived, ordered, two-way flow of frames, where a training step is one frame up and one
frame down; see `frame.py`). Each has a folder beside this file and passes the suite in
`tests/wire/test_transport_contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trainband.cluster.identity import Identity, Role
from trainband.errors import RefusalCode, Refused
from trainband.wire.frame import Frame


class Stream(Protocol):
    """One end of an ordered two-way flow of frames. One thread may send while another receives.

    Attributes:
      most_bytes: the largest body accepted: a frame that exceeds it, or announces more, ends the stream before any
        memory is allocated for it.
    """

    most_bytes: int

    @property
    def peer(self) -> str:
        """The other end, for messages to people, such as `10.0.0.7:2222`."""
        ...

    @property
    def transport(self) -> str:
        """How the bytes travel: `flight`, `shared memory` or `memory`."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the other end is still there, as far as can be told without receiving."""
        ...

    @property
    def outlives_sender(self) -> bool:
        """Whether a frame outlives this process once `send` has returned: the memory of one machine then holds it until
        it is received. This gives `refuse_more` a sharp cutoff.
        """
        ...

    @property
    def silent_s(self) -> float:
        """Seconds that the receiver has waited without a keepalive from the other end; 0 if none is waiting, or if no
        network is involved that could delay one.
        """
        ...

    @property
    def moved_s(self) -> float:
        """Seconds since the last part of a frame that is under way came or went; infinite while none is, as far as is
        known. A frame of gigabytes is on a slow link for longer than a lease.
        """
        ...

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        """Sends one frame. The arrays are C-contiguous and may be reused when this returns.

        Raises:
          StreamClosed: the other end has gone. `receive` still returns what it sent before it closed the stream, except
            over Flight, which may discard it: a handler that refuses a stream should therefore also raise the reason.
          DeadlineExceeded: the other end has taken nothing for `Timeouts.stall_s`.
        """
        ...

    def receive(self, timeout_s: float) -> Frame | None:
        """Waits for the next frame; returns `None` if none has come in `timeout_s` seconds.

        Raises:
          StreamClosed: the other end has closed or died, and all its frames have been received.
        """
        ...

    def refuse_more(self) -> None:
        """Makes each further `send` of the other end raise `StreamClosed`. Does not block; callable from any thread.

        If the stream `outlives_sender` frames, those already sent are still received, and then `receive` raises;
        otherwise the stream ends at once.
        """
        ...

    def close(self) -> None:
        """Ends the stream: the other end receives what was sent, then `StreamClosed`. Idempotent."""
        ...

    def interrupt(self) -> None:
        """Ends the stream at once, from any thread: blocked calls raise `StreamClosed`, now or at their timeout."""
        ...


class Connection(Protocol):
    """A client's connection to one listener. Thread-safe."""

    @property
    def address(self) -> str: ...

    def call(self, action: str, body: bytes = b"", *, timeout_s: float) -> bytes:
        """Sends one control request and returns its answer.

        Raises:
          Unreachable: no task listens there.
          UnknownHost: the host name of the address cannot be resolved.
          DeadlineExceeded: no answer in `timeout_s` seconds.
          Refused: the handler raised; the message is the handler's.
          AuthenticationError: one of the two has not proved that it belongs to the job.
        """
        ...

    def open_stream(self, *, timeout_s: float) -> Stream:
        """Opens a stream for the listener's `Handler.stream` to serve.

        Raises:
          Unreachable, DeadlineExceeded: as for `call`.
        """
        ...

    def close(self) -> None:
        """Closes the connection and every stream opened by it. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """A variable as shown to Flight clients: rows are the first axis; `read` returns the whole value."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[tuple[int, int, str], ...]
    """(first row, end row, address) of each slice: the address whose `DoGet` returns it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The other end of a call or stream, as far as the transport knows.

    Attributes:
      peer: the connection, for messages.
      identity: the proven identity; `None` if no proof is required.
      certificate: the certificate used for it, by the owner's name in TLS; empty without one.
    """

    peer: str = ""
    identity: Identity | None = None
    certificate: bytes = b""

    def require(self, roles: frozenset[Role], doing: str) -> None:
        """Raises `Refused` if the caller has none of these roles."""
        if self.identity is not None and not roles & self.identity.roles:
            wanted = " or ".join(sorted(roles))
            raise Refused(
                f"{self.identity.name} may not {doing}: this requires the role {wanted}.", RefusalCode.FORBIDDEN
            )

    def require_self(self, name: str, incarnation: str, doing: str) -> None:
        """Raises `Refused` if the caller speaks for a process other than its own."""
        mine = self.identity
        if mine is not None and (name, incarnation) != (mine.name, mine.incarnation):
            whom = name if name != mine.name else f"another process of {name}"
            raise Refused(f"{mine.name} may not {doing} in the name of {whom}.", RefusalCode.FORBIDDEN)


ANYBODY = Caller()
"""The caller if no proof is required: within one process, or without security."""


class Handler(Protocol):
    """The code behind a listener. Called from the transport's own threads, several at a time."""

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        """Answers a control request; a `TrainbandError` raised here reaches the caller as `Refused`."""
        ...

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        """Serves one stream, until it is closed or the listener stops; then returns."""
        ...

    def tensors(self) -> Sequence[Tensor]:
        """Returns the variables, for read-only clients."""
        ...

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        """Returns this task's rows of a variable: (first row, values). Raises `Refused` for an unknown name."""
        ...


class Listener(Protocol):
    """A server that accepts a task's connections."""

    @property
    def address(self) -> str:
        """The address as seen by clients; if port 0 was requested, with the assigned port."""
        ...

    def stop(self, grace_s: float) -> None:
        """Stops taking calls, waits up to `grace_s` seconds for open streams to end, then cuts them. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Deadlines and intervals, in seconds."""

    connect_s: float = 10.0
    """Wait for a peer's first answer."""
    resolve_s: float = 30.0
    """Wait for a peer's host name to be resolvable, before this task has joined the job."""
    call_s: float = 10.0
    """Wait for the answer to one control call."""
    stall_s: float = 60.0
    """Wait for a live peer to take or send the next bytes of a stream."""
    heartbeat_s: float = 1.0
    """Interval between heartbeats of an idle worker."""
    lease_s: float = 10.0
    """Time without a heartbeat after which a worker counts as gone, unless a frame of it is arriving."""
    start_s: float = 300.0
    """Wait for all tasks of a job to start and for the chief to initialise it."""
    grace_s: float = 3.0
    """Wait for a task's open streams to end when it stops."""

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
        """Returns a connection to a listener without waiting: the first call finds out whether it is reachable."""
        ...

    def speaking_as(self, identity: Identity) -> Transport:
        """Returns this transport for a task with another identity."""
        ...
