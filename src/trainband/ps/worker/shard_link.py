"""A worker's link to one shard: the ps that holds it and its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from trainband.errors import ProtocolError, StreamClosed
from trainband.ps.worker.plan import Plan
from trainband.runtime import SYSTEM, Runtime
from trainband.wire.frame import Bytes
from trainband.wire.messages.codec import decode, encode
from trainband.wire.transport import Connection, Stream, Timeouts, Transport

Blocks = tuple[NDArray[Any], ...]
Record = TypeVar("Record")

ANY = -1
"""Placeholder in a record's field `worker`: filled in later, because each ps has its own numbers."""

ME = ""
"""Placeholder in a record's field `incarnation`: filled in later."""

Place = tuple[int, str]
"""A ps: its number and its address."""


class Link:
    """A link to one shard.

    Args:
      places: the ps that may hold it, its own first.
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
        """Which of `places` this worker uses."""
        self.lineage = ""
        """The lineage of the shard's values: if it changes, those this worker knew are lost."""
        self.term = 0
        """The term in which the ps holds the shard, as reported at the join."""
        self.request: tuple[bytes, Sequence[NDArray[Any]]] = (b"", ())
        """The last request on the stream, to be resent if the stream ends."""
        self.asked: Sequence[NDArray[Any]] = ()
        """The ids whose rows the last request asks for, for each table."""
        self.broken: StreamClosed | None = None
        """Why the last request cannot have arrived."""
        self.suspected_at: float | None = None
        """When the ps answered heartbeats again after an outage, if no frame has come since."""
        self.cut = False
        """Whether a stream was cut for silence since the last frame or outage."""
        self.recovering = runtime.recursive_lock()
        """Held by the thread looking for the ps."""
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
        """The number of the ps that this worker uses."""
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
        """Makes a control request about this shard; fills in the record's `worker` and `incarnation`."""
        if record is not None and hasattr(record, "worker"):
            record = structs.replace(record, worker=self.worker)
        if record is not None and hasattr(record, "incarnation"):
            record = structs.replace(record, incarnation=self._incarnation)
        body = b"" if record is None else encode(record)
        if self.ps != self.index:
            action = f"{action}/{self.index}"
        return decode(self.connection.call(action, body, timeout_s=timeout_s), kind, str(self))

    def ask(self, action: str, record: Struct, kind: type[Record]) -> Record:
        """Like `call`, with `Timeouts.call_s`."""
        return self.call(action, record, kind, self._timeouts.call_s)

    def reconnect(self) -> None:
        """Opens a new connection: an old one may wait long before it tries the ps again."""
        old, self.connection, self.stream, self.broken = self.connection, self._connect(), None, None
        old.close()

    def move(self) -> None:
        """Moves to the other ps that may hold the shard."""
        self.at = (self.at + 1) % len(self.places)
        self.reconnect()

    def close(self) -> None:
        """Ends the stream and the connection."""
        if self.stream is not None:
            self.stream.close()
        self.connection.close()

    def _connect(self) -> Connection:
        return self._transport.connect(self.address, self._timeouts)

    @property
    def params_bytes(self) -> int:
        """Memory of the params that it received last; that of a shared-memory stream is divided between its ends."""
        nbytes = sum(block.nbytes for block in self._last_blocks)
        stream = self.stream
        return nbytes // 2 if stream is not None and stream.transport == "shared memory" else nbytes

    def blocks(self, plan: Plan, body: tuple[Bytes, ...], *, is_narrow: bool = False) -> Blocks:
        """Returns the body as this shard's blocks; the same views while the transport reuses its memory.

        The rows that were asked for follow, as vectors.
        """
        if body is not self._last_body or self.asked:
            layout = plan.layout.shards[self.index]
            count = len(layout.blocks)
            blocks = layout.from_wire(body[:count], plan.description.pull_dtype if is_narrow else "")
            rows, tables = body[count:], plan.description.tables
            sizes = [ids.size * table.dim * 4 for ids, table in zip(self.asked, tables, strict=False)]
            if blocks is None or [raw.nbytes for raw in rows] != sizes:
                raise ProtocolError(f"{self} sent params whose size is not the model's.")
            self._last_body, self._last_blocks = body, (*blocks, *(raw.view(np.float32) for raw in rows))
        return self._last_blocks
