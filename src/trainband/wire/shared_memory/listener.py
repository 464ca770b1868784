"""Accepting and opening shared-memory streams. Linux only."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable

from trainband.errors import DeadlineExceeded, PeerError, Refused, ResourceExhausted, StreamClosed, Unreachable
from trainband.runtime.limits import start_thread
from trainband.wire.handling import serve
from trainband.wire.shared_memory.stream import SharedMemoryStream
from trainband.wire.transport import ANYBODY, Caller, Handler, Timeouts


def _may_talk(connection: socket.socket) -> bool:
    """Whether the other end is our user or root: any user of the machine can reach an abstract socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    return user in (os.geteuid(), 0)


def _anybody(_: bytes) -> Caller:
    return ANYBODY


_MOST_STREAMS = 1024
"""Limit on concurrent streams."""


class SharedMemoryListener:
    """Accepts the shared-memory streams of one listener."""

    def __init__(self, handler: Handler, timeouts: Timeouts) -> None:
        self.name = f"trainband/{secrets.token_hex(16)}"
        self.address = self.name
        """Address of the listener that it belongs to, for messages."""
        self.caller_of: Callable[[bytes], Caller] = _anybody
        """Identifies a caller by its ticket. Raises `Refused` to reject it."""
        self.handler = handler
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._serving: dict[threading.Thread, SharedMemoryStream] = {}
        self._stopping = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(f"\0{self.name}")
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._accept, name="trainband-shared-memory-accept", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED) and not self._stopping:
                    time.sleep(0.1)  # out of descriptors: try again once a stream may have ended
                    continue
                return
            if not _may_talk(connection):
                connection.close()
                continue
            self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        try:
            stream = SharedMemoryStream(connection, "a task on this machine", self._timeouts, lambda _stream: None)
        except OSError:  # out of descriptors: the client uses the network, or gets the error there
            connection.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(stream,), name=f"trainband-shared-memory-{self.address}", daemon=True
        )
        try:
            with self._lock:
                if not self._stopping and len(self._serving) < _MOST_STREAMS:
                    start_thread(thread)
                    self._serving[thread] = stream
                    return
        except ResourceExhausted as exc:
            logging.getLogger("trainband.wire").error("%s cannot serve more streams: %s", self.address, exc)
            stream.end(str(exc))
            return
        stream.close()

    def _serve(self, stream: SharedMemoryStream) -> None:
        reason = ""
        try:
            ticket = stream.receive(self._timeouts.connect_s)
            if ticket is None:
                reason = "no ticket was sent"
                return
            caller = self.caller_of(ticket.header)
            stream.accept()
            reason = serve(self.handler, stream, self.address, caller)
        except Refused as exc:
            reason = str(exc)
        except PeerError:
            pass  # it left before it was accepted
        finally:
            stream.end(reason)
            with self._lock:
                self._serving.pop(threading.current_thread(), None)

    def stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        with self._lock:
            self._stopping = True
            serving = dict(self._serving)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for stream in serving.values():
            stream.refuse_more()
        others = serving.keys() - {threading.current_thread()}
        soon = time.monotonic() + 0.8 * grace_s
        for thread in others:
            thread.join(max(0.0, soon - time.monotonic()))
        for stream in serving.values():
            stream.cut()
        for thread in (*others, self._thread):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._socket.close()


def open_shared_memory_stream(
    name: str,
    peer: str,
    timeouts: Timeouts,
    timeout_s: float,
    forget: Callable[[SharedMemoryStream], None],
    ticket: bytes = b"",
) -> SharedMemoryStream:
    """Opens a stream through the listener's socket of that name.

    Args:
      ticket: the listener's proof of admission.

    Raises:
      Unreachable: this machine has no such socket, or it belongs to another user.
      DeadlineExceeded: it exists, but did not open.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        connection.connect(f"\0{name}")
        if not _may_talk(connection):
            raise Unreachable(f"the shared memory of {peer} belongs to another user.")
    except TimeoutError as exc:
        connection.close()
        raise DeadlineExceeded(f"{peer} did not open a stream in {timeout_s:g} s.") from exc
    except OSError as exc:
        connection.close()
        raise exc if isinstance(exc, PeerError) else Unreachable(f"{peer} is not on this machine.") from exc
    stream = SharedMemoryStream(connection, peer, timeouts, forget)
    try:
        stream.send_ticket(ticket)
        accepted = stream.receive(timeout_s)
    except StreamClosed as exc:
        stream.close()
        raise Unreachable(f"{peer} does not share memory with this user.") from exc
    if accepted is None:
        stream.close()
        raise DeadlineExceeded(f"{peer} did not open a stream in {timeout_s:g} s.")
    return stream
