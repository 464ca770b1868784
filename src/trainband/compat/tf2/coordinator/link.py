"""Link: a stream to a server of the job, for requests that are answered in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from trainband.cluster.identity import Identity
from trainband.cluster.resolvers.credentials import resolve_credentials
from trainband.compat.tf1.graphs import errors
from trainband.compat.tf2.coordinator.records import TAKEN, Failure, Hello
from trainband.errors import DeadlineExceeded, RefusalCode, Refused, StreamClosed
from trainband.wire.frame import Frame
from trainband.wire.messages.codec import decode_any, encode
from trainband.wire.network import Network
from trainband.wire.transport import Connection, Stream, Timeouts, Transport

_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OpError) and kind is not errors.OpError
}
"""TensorFlow's errors by name."""


def error_of(failure: Failure) -> Exception:
    """The error that a failure stands for."""
    if failure.kind == TAKEN:
        return Refused(failure.message, RefusalCode.NAME_TAKEN)
    return _KINDS.get(failure.kind, errors.UnknownError)(None, None, failure.message)


def network_of(identity: Identity) -> Network:
    """The transport of a task of a coordinator's job.

    Raises:
      InvalidArgumentError: the task has certificates: those of workers are not for servers, and here workers serve.
    """
    if resolve_credentials().tls is not None:
        raise errors.InvalidArgumentError(
            None,
            None,
            f"{identity.name} cannot use certificates (TRAINBAND_TLS): jobs of a ClusterCoordinator are protected by a "
            "secret alone. Give all tasks the same TRAINBAND_SECRET_FILE (`trainband secret FILE` makes one).",
        )
    return Network(identity=identity)


class Link:
    """A stream to a server. Not for several threads at a time.

    Args:
      name: of the server, such as `ps:0`.
      answers: the records that it may answer with.
    """

    def __init__(self, name: str, address: str, answers: Any, transport: Transport, timeouts: Timeouts) -> None:
        self.name = name
        self.address = address
        self._answers = answers
        self._timeouts = timeouts
        self._connection: Connection = transport.connect(address, timeouts)
        self._stream: Stream | None = None

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"

    def open(self, hello: Hello, timeout_s: float | None = None) -> None:
        """Opens the stream.

        Raises:
          PeerError: nobody answers there.
        """
        self._stream = self._connection.open_stream(timeout_s=timeout_s or self._timeouts.connect_s)
        self._stream.send(encode(hello))

    def send(self, record: Struct, body: Sequence[Any] = ()) -> None:
        """Sends a request.

        Raises:
          StreamClosed: the server has gone.
        """
        assert self._stream is not None
        self._stream.send(encode(record), body)

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Frame]:
        """The next answer, whose arrays are borrowed until the one after it.

        Raises:
          StreamClosed: the server has gone.
          DeadlineExceeded: it is there, and has not answered.
        """
        assert self._stream is not None
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (frame := self._stream.receive(1.0)) is None:
            if until is not None and time.monotonic() > until:
                raise DeadlineExceeded(f"{self} gave no answer in {timeout_s:.0f} s; check that it runs.")
        return decode_any(frame.header, self._answers, str(self)), frame

    def exchange(self, record: Struct, body: Sequence[Any], timeout_s: float | None) -> tuple[Any, Frame]:
        """One request and its answer, which may be a `Failure`. Raises what `receive` does."""
        with suppress(StreamClosed):  # what it sent before it closed the stream can still be received
            self.send(record, body)
        return self.receive(timeout_s)

    def ask(self, record: Struct, body: Sequence[Any] = (), timeout_s: float | None = None) -> Frame:
        """One request and its answer.

        Raises:
          OpError: the server has failed to do it.
          Refused: the server has another coordinator.
        """
        answer, frame = self.exchange(record, body, timeout_s)
        if isinstance(answer, Failure):
            raise error_of(answer)
        return frame

    def close(self) -> None:
        """Ends the stream."""
        if self._stream is not None:
            self._stream.close()
        self._connection.close()
