"""A worker's link to one shard: whichever ps holds it, and the stream to that one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs
from numpy.typing import NDArray

from trainband.errors import ProtocolError, StreamClosed
from trainband.ps.description import Plan
from trainband.ps.worker.checkpointing import Record
from trainband.runtime import SYSTEM, Runtime
from trainband.wire.codec import decode, encode
from trainband.wire.transport import Bytes, Connection, Stream, Timeouts, Transport

Blocks = tuple[NDArray[Any], ...]

Place = tuple[int, str]
"""A ps: its number and its address."""


class Link:
    """The way to one shard.

    Args:
      shard: its number.
      places: the ps that may hold it, its own first.
      incarnation: of this worker.
      transport: how bytes travel.
      timeouts: how long to wait for what.
      runtime: this task's.
    """

    def __init__(
        self,
        shard: int,
        places: Sequence[Place],
        incarnation: str,
        transport: Transport,
        timeouts: Timeouts,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.index = shard
        self.places = tuple(places)
        self.at = 0
        """Which of them this worker speaks with."""
        self.lineage = ""
        """Of the shard's values: where it has another, those that this worker knew are lost."""
        self.term = 0
        """In which the ps holds the shard, as it said on joining."""
        self.request: tuple[bytes, Sequence[NDArray[Any]]] = (b"", ())
        """What was sent last on the stream, to be sent again if that breaks off."""
        self.broken: StreamClosed | None = None
        """Why what was sent last cannot have arrived."""
        self.suspected_at: float | None = None
        """When the ps answered heartbeats again after the network, or it, was away, if no frame has come since."""
        self.cut = False
        """Whether a stream was ended because nothing came, since a frame came on one or the ps was away."""
        self.recovering = runtime.recursive_lock()
        """Held by the thread that looks for the ps."""
        self._incarnation = incarnation
        self._transport = transport
        self._timeouts = timeouts
        self.connection = self._connect()
        self.worker = -1
        self.stream: Stream | None = None
        self._last_body: tuple[Bytes, ...] | None = None
        self._last_blocks: Blocks = ()

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"

    @property
    def ps(self) -> int:
        """The number of the ps that this worker speaks with."""
        return self.places[self.at][0]

    @property
    def name(self) -> str:
        """The name of that ps."""
        return f"ps:{self.ps}"

    @property
    def address(self) -> str:
        """Where that ps is."""
        return self.places[self.at][1]

    def call(self, action: str, record: Struct | None, kind: type[Record], timeout_s: float) -> Record:
        """One control request about this shard; a record's fields `worker` and `incarnation` are filled in."""
        if record is not None and hasattr(record, "worker"):
            record = structs.replace(record, worker=self.worker)
        if record is not None and hasattr(record, "incarnation"):
            record = structs.replace(record, incarnation=self._incarnation)
        body = b"" if record is None else encode(record)
        if self.ps != self.index:
            action = f"{action}/{self.index}"
        return decode(self.connection.call(action, body, timeout_s=timeout_s), kind, str(self))

    def ask(self, action: str, record: Struct, kind: type[Record]) -> Record:
        """As `call`, with the usual patience."""
        return self.call(action, record, kind, self._timeouts.call_s)

    def reconnect(self) -> None:
        """Begins afresh: an old connection may wait long before it looks whether the ps is back."""
        old, self.connection, self.stream, self.broken = self.connection, self._connect(), None, None
        old.close()

    def move(self) -> None:
        """Turns to the other ps that may hold the shard."""
        self.at = (self.at + 1) % len(self.places)
        self.reconnect()

    def close(self) -> None:
        """Ends the stream and the connection."""
        if self.stream is not None:
            self.stream.close()
        self.connection.close()

    def _connect(self) -> Connection:
        return self._transport.connect(self.address, self._timeouts)

    def blocks(self, plan: Plan, body: tuple[Bytes, ...]) -> Blocks:
        """The body as this shard's blocks; the same views again while the transport reuses its memory."""
        if body is not self._last_body:
            blocks = plan.layout.shards[self.index].from_wire(body)
            if blocks is None:
                raise ProtocolError(f"{self} sent params of another size than the model's.")
            self._last_body, self._last_blocks = body, blocks
        return self._last_blocks
