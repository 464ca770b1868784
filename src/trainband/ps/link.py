"""Link: one worker's way to one ps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs
from numpy.typing import NDArray

from trainband.errors import ProtocolError, StreamClosed
from trainband.ps.checkpointing import Record
from trainband.ps.description import Plan
from trainband.wire.codec import decode, encode
from trainband.wire.transport import Bytes, Connection, Stream, Timeouts, Transport

Blocks = tuple[NDArray[Any], ...]


class Link:
    """The way to one ps."""

    def __init__(self, name: str, address: str, index: int, transport: Transport, timeouts: Timeouts) -> None:
        self.name = name
        self.address = address
        self.life = ""
        """Which life of the ps this worker speaks with."""
        self.request: tuple[bytes, Sequence[NDArray[Any]]] = (b"", ())
        """What was sent last on the stream, to be sent again if that breaks off."""
        self.broken: StreamClosed | None = None
        """Why what was sent last cannot have arrived."""
        self._transport = transport
        self._timeouts = timeouts
        self.connection = self._connect()
        self.index = index
        self.worker = -1
        self.stream: Stream | None = None
        self._last_body: tuple[Bytes, ...] | None = None
        self._last_blocks: Blocks = ()

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"

    def call(self, action: str, record: Struct | None, kind: type[Record], timeout_s: float) -> Record:
        """One control request; a record's field `worker` is filled in."""
        if record is not None and hasattr(record, "worker"):
            record = structs.replace(record, worker=self.worker)
        body = b"" if record is None else encode(record)
        return decode(self.connection.call(action, body, timeout_s=timeout_s), kind, str(self))

    def ask(self, action: str, record: Struct, kind: type[Record]) -> Record:
        """As `call`, with the usual patience."""
        return self.call(action, record, kind, self._timeouts.call_s)

    def reconnect(self) -> None:
        """Begins afresh: an old connection may wait long before it looks whether the ps is back."""
        old, self.connection, self.stream, self.broken = self.connection, self._connect(), None, None
        old.close()

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
