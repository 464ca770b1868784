"""ShardReader: the newest values of one shard, from whichever ps holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from trainband.errors import DeadlineExceeded, PeerError, ProtocolError, RefusalCode, Refused, StreamClosed
from trainband.model.layout import ShardLayout
from trainband.ps.changes import applied
from trainband.runtime import Runtime
from trainband.wire.frame import Frame
from trainband.wire.messages import following as w
from trainband.wire.messages.calls import Failure
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.transport import Connection, Stream, Timeouts, Transport

SLOWEST_BYTES_PER_S = 20e6
"""Slowest rate from a ps: an answer that takes longer times out."""

END_S = 1.0
"""Maximum seconds between the ends of two ps of a job; a ps checks every 0.2 s."""


class ShardReader:
    """One shard's reader. For one thread at a time.

    Within a lineage, the term and the version never decrease: a ps deposed without knowing it is dropped.

    Args:
      places: addresses of the ps that may hold it.
      timeouts: `connect_s` to open a stream, `call_s` for an answer, longer for a large one.
    """

    def __init__(
        self,
        number: int,
        layout: ShardLayout,
        places: Sequence[str],
        transport: Transport,
        timeouts: Timeouts,
        runtime: Runtime,
    ) -> None:
        self.name = f"shard {number}"
        self.blocks: tuple[NDArray[Any], ...] = ()
        """Empty before the first values. Never overwritten: new values come in new arrays."""
        self.values: w.Values | None = None
        """Received with the blocks."""
        self.is_of_another_job = False
        """Whether the values are from another job than the first ones."""
        self.took_s = 0.0
        """The last answer's time, without the ps's wait for a version."""
        self.ended: str | None = None
        """Why the ps that held the shard is ending, as it reported; `None` otherwise."""
        self._number = number
        self._layout = layout
        self._places = list(places)
        self._transport = transport
        self._timeouts = timeouts
        self._runtime = runtime
        self._connection: Connection | None = None
        self._stream: Stream | None = None

    @property
    def was_left(self) -> bool:
        """Whether it has values but has lost the ps that sent them."""
        return self.values is not None and self._stream is None

    @property
    def is_complete(self) -> bool:
        """Whether the last values were those at the end of a training run."""
        values = self.values
        return values is not None and 0 < values.last_version <= values.version

    def read_current(self) -> w.Values:
        """Returns the current version; see `read` for errors."""
        return self._ask(w.Look())

    def read(self, at: int = 0, wait_s: float = 0.0) -> w.Values:
        """Reads the newest version, or waits up to `wait_s` for `at`.

        Raises:
          PeerError: no ps returned the shard.
        """
        return self._ask(w.Read(at, wait_s), wait_s)

    def poll_end(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s`; returns whether the ps reported its end or is gone.

        A ps reports its end with the last values.
        """
        if self._stream is None:
            self._runtime.sleep(timeout_s)
            return False
        try:
            frame = self._stream.receive(timeout_s)
        except PeerError:
            self._disconnect()
            return True
        if frame is None:
            return False
        try:
            self._process(frame, self._stream.peer)
        except PeerError:
            self._disconnect()
        return True

    def wait_for_end(self) -> None:
        """Waits until the ps ends, after the ps of another shard has ended.

        The ps of a job end one by one. Without this wait, the last version of the later ones would be lost.
        """
        deadline = self._runtime.clock() + END_S + self._layout.nbytes / SLOWEST_BYTES_PER_S
        while self._stream is not None and (left_s := deadline - self._runtime.clock()) > 0:
            self.poll_end(left_s)

    def close(self) -> None:
        """Leaves the ps; what was read stays."""
        self._disconnect()

    def _ask(self, question: w.Look | w.Read, wait_s: float = 0.0) -> w.Values:
        errors: list[PeerError] = []
        for address in list(self._places):
            try:
                found = self._asked(address, question, wait_s)
            except PeerError as exc:
                self._disconnect()
                errors.append(exc)
                self._places.append(self._places.pop(0))  # the other one may have it
                continue
            return found
        raise _joined_error(self.name, errors)

    def _asked(self, address: str, question: w.Look | w.Read, wait_s: float) -> w.Values:
        stream = self._opened(address)
        with contextlib.suppress(StreamClosed):  # what it sent before ending is still received
            stream.send(encode(question))
        began = self._runtime.clock()
        answer_s = self._timeouts.call_s + self._layout.nbytes / SLOWEST_BYTES_PER_S
        deadline = began + wait_s + answer_s
        while True:
            left_s = deadline - self._runtime.clock()
            frame = stream.receive(max(0.001, left_s))
            if frame is not None:
                told = self._process(frame, address)
                self.took_s = self._runtime.clock() - began - told.waited_s
                return told
            if left_s <= 0:
                raise DeadlineExceeded(f"{address} gave no answer about {self.name} in {answer_s + wait_s:.1f} s.")

    def _opened(self, address: str) -> Stream:
        if self._stream is None:
            self._connection = self._transport.connect(address, self._timeouts)
            self._stream = self._connection.open_stream(timeout_s=self._timeouts.connect_s)
            self._stream.most_bytes = self._layout.nbytes  # rows are sent only if smaller
            self._stream.send(encode(w.Follow(self._number)))
        return self._stream

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        connection, self._connection = self._connection, None
        if stream is not None:
            stream.close()
        if connection is not None:
            connection.close()

    def _process(self, frame: Frame, address: str) -> w.Values:
        """Processes a frame.

        Raises:
          Refused: the ps does not hold the shard, or has no values.
          ProtocolError: it is invalid.
        """
        told: w.Downward = decode_any(frame.header, w.Downward, address)
        if isinstance(told, Failure):
            raise Refused(told.message, told.code)
        if not told.lineage:
            raise Refused(f"{address} ends: {told.why}", RefusalCode.MOVED)
        held = self.values
        is_older = held is not None and (told.term < held.term or told.version < held.version)
        if held is not None and told.lineage == held.lineage and is_older:
            raise Refused(
                f"{address} has {self.name} at version {told.version} of term {told.term}, older than "
                f"version {held.version} of term {held.term}: another ps holds it.",
                RefusalCode.MOVED,
            )
        if told.is_new and (told.changed or not self._layout.blocks):
            self.blocks = applied(self._layout, self.blocks, told.changed, frame.body, address)
            self.values = told
            self.is_of_another_job |= held is not None and told.job != held.job
        elif not told.is_new and held is not None:
            self.values = told  # same values, but the training's end and the term may differ
        elif frame.body:
            raise ProtocolError(f"{address} sent values but did not name them.")
        self.ended = (told.why or "it was told to") if told.over else None
        if told.over:
            self._disconnect()
        return told


def _joined_error(name: str, errors: Sequence[PeerError]) -> PeerError:
    """One error for all places, of the first one's kind."""
    if len(errors) == 1:
        return errors[0]
    text = f"no ps has {name}: " + "; ".join(str(exc).rstrip(".") for exc in errors) + "."
    first = next((exc for exc in errors if isinstance(exc, Refused)), errors[0])
    return type(first)(text, first.code) if isinstance(first, Refused) else type(first)(text)
