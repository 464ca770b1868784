"""Streams over UCX."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trainband.errors import PeerError
from trainband.wire.frame import Frame
from trainband.wire.handling import closed_here, not_taken, silent, stopping, vanished
from trainband.wire.transport import Timeouts
from trainband.wire.ucx.endpoint import Broken, Endpoint
from trainband.wire.ucx.frames import Inbox, Kind, Outbox

_LINGER_S = 1.0
"""How long a closing stream waits for the other end to read what it was sent."""


class UcxStream:
    """One end of a stream over UCX.

    A waiting thread does UCX's work meanwhile. While both ends send, incoming data is received into its own memory,
    so that neither waits for the other. The `Ticker` of the connection or listener sends a keepalive when nothing
    else was sent.

    Args:
      endpoint: connected, and accepted by the other end.
    """

    def __init__(self, endpoint: Endpoint, peer: str, timeouts: Timeouts, forget: Callable[[UcxStream], None]) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._timeouts = timeouts
        self._forget = forget
        self._outbox, self._inbox = Outbox(endpoint), Inbox(endpoint, peer)
        self._send_lock, self._receive_lock, self._close_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._closed = self._released = self._is_stopping = False
        self._keepalives: list[int] = []
        self._last_sent = time.monotonic()
        self._waiting_since: float | None = None
        self._heard_at = time.monotonic()
        self._taken_at: float | None = None
        """When the other end last took a part of the frame that is being sent; `None` while none is."""
        with endpoint.lock:
            names = "+".join(endpoint.transports())
        self._transport = f"ucx: {names}" if names else "ucx"

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def transport(self) -> str:
        return self._transport

    @property
    def most_bytes(self) -> int:
        return self._inbox.most_bytes

    @most_bytes.setter
    def most_bytes(self, most: int) -> None:
        self._inbox.most_bytes = most

    @property
    def alive(self) -> bool:
        if self._closed or self._inbox.over is not None:
            return False
        if self._receive_lock.acquire(blocking=False):  # no thread waits there, which would have noticed
            try:
                self._endpoint.wait(self._poll, 0.0)
            finally:
                self._receive_lock.release()
        return self._inbox.over is None and self._endpoint.failure is None

    @property
    def outlives_sender(self) -> bool:
        return False  # data on the network is lost with it

    @property
    def silent_s(self) -> float:
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def moved_s(self) -> float:
        moved = [at for at in (self._heard_at if self._inbox.is_within else None, self._taken_at) if at is not None]
        return time.monotonic() - max(moved) if moved else math.inf

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        with self._send_lock:
            self._raise_if_over()
            done = False
            try:
                self._outbox.load(header, body)
                with self._endpoint.lock:
                    done = self._outbox.advance()
                if not done:
                    self._transmit()
                    done = True
            except Broken as exc:
                raise self._gone() from exc
            finally:
                self._taken_at = None
                if not (done or self._inbox.is_parted):  # half a frame is out: nothing after it could be read
                    self.interrupt()
            self._last_sent = time.monotonic()

    def _raise_if_over(self) -> None:
        if self._closed:
            raise closed_here(self._peer)
        if self._inbox.is_parted:
            raise self._gone()

    def _transmit(self) -> None:
        self._taken_at = now = time.monotonic()
        while now < self._taken_at + self._timeouts.stall_s:
            if self._endpoint.wait(self._advance, self._taken_at + self._timeouts.stall_s - now):
                self._raise_if_over()
                if self._endpoint.failure is not None:
                    raise self._gone()
                return
            now = time.monotonic()
        self._raise_if_over()
        raise not_taken(self._peer, self._timeouts.stall_s)

    def _advance(self) -> bool:
        """Returns whether the frame has gone, or can no longer go."""
        if self._closed:
            return True
        taken = self._outbox.taken
        if self._outbox.advance():
            return True
        if self._outbox.taken != taken:
            self._taken_at = time.monotonic()
        # The other end may be sending too. If no thread receives here, take its data.
        if self._receive_lock.acquire(blocking=False):
            try:
                self._inbox.advance()
            finally:
                self._receive_lock.release()
        return self._inbox.poll_end() or self._endpoint.failure is not None

    def _gone(self) -> PeerError:
        """Why nothing more can be sent."""
        if self._closed:
            return closed_here(self._peer)
        with contextlib.suppress(Broken):
            self._endpoint.wait(self._inbox.poll_end, 0.0)
        return self._inbox.over or self._inbox.parting or vanished(self._peer)

    def receive(self, timeout_s: float) -> Frame | None:
        with self._receive_lock:
            if self._closed:
                raise closed_here(self._peer)
            self._inbox.release()
            self._waiting_since = time.monotonic()
            try:
                return self._await_frame(time.monotonic() + timeout_s)
            finally:
                self._waiting_since = None

    def _await_frame(self, deadline: float) -> Frame | None:
        self._heard_at = time.monotonic()
        while True:
            stalled_at = self._heard_at + self._timeouts.stall_s
            # Waits for the rest of a frame as long as something arrives.
            until = stalled_at if self._inbox.is_within else min(deadline, stalled_at)
            self._endpoint.wait(self._poll, max(0.0, until - time.monotonic()))
            if self._closed:
                raise closed_here(self._peer)
            if self._inbox.is_whole:
                return self._inbox.pop()
            if self._inbox.over is not None:
                raise self._inbox.over
            if self._is_stopping:
                raise stopping("this task's listener")
            now = time.monotonic()
            if now >= self._heard_at + self._timeouts.stall_s:
                self._inbox.over = silent(self._peer, self._timeouts.stall_s)
            elif now >= deadline and not self._inbox.is_within:
                return None

    def _poll(self) -> bool:
        """Takes what has arrived; returns whether `receive` must act."""
        heard = self._inbox.heard
        try:
            self._inbox.advance()
        except Broken as exc:
            self._inbox.over = vanished(self._peer)
            self._inbox.over.__cause__ = exc
        if self._inbox.heard != heard:
            self._heard_at = time.monotonic()
            if self._waiting_since is not None:
                self._waiting_since = self._heard_at
        if self._inbox.is_whole or self._inbox.over is not None:
            return True
        if self._endpoint.failure is not None:
            self._inbox.over = vanished(self._peer)
            return True
        return self._closed or self._is_stopping

    def tick(self, now: float) -> None:
        """Sends a keepalive if one is due, without waiting."""
        if self._closed or now - self._last_sent < self._timeouts.heartbeat_s / 2:
            return
        if not self._send_lock.acquire(blocking=False):
            return  # the data being sent serves as a keepalive
        try:
            self._endpoint.wait(self._send_keepalive, 0.0)
        except Broken:  # the next user of the stream gets the error
            pass
        finally:
            self._last_sent = now
            self._send_lock.release()

    def _send_keepalive(self) -> bool:
        if self._closed or self._endpoint.failure is not None:
            return True
        self._keepalives = [request for request in self._keepalives if not self._endpoint.finished(request)]
        if not self._keepalives and (request := self._endpoint.send(Kind.ALIVE, 0, 0)):
            self._keepalives.append(request)
        return True

    def stop_receiving(self) -> None:
        """Stops a handler that waits for a frame here; one that is working on a frame may still answer it."""
        self._is_stopping = True
        self._endpoint.wake()

    def refuse_more(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        was_open, self._closed = not self._closed, True
        if was_open:
            # An endpoint that is closed by force stays connected until its worker goes: send the end.
            with self._endpoint.lock, contextlib.suppress(Broken):
                self._endpoint.send(Kind.END, 0, 0)
        self._endpoint.wake()

    def close(self) -> None:
        self.end("")

    def end(self, reason: str) -> None:
        with self._close_lock:
            if self._released:
                return
            # Waits for a frame on its way: this end's other thread may be sending it.
            free = self._send_lock.acquire(timeout=self._timeouts.grace_s)
            is_open, self._closed = not self._closed, True
            try:
                self._endpoint.wake()
                if free and is_open:
                    self._part(reason)
            finally:
                if free:
                    self._send_lock.release()
            self._endpoint.destroy()
            self._released = True
        self._forget(self)

    def _part(self, reason: str) -> None:
        """Sends the end and waits for the other end to read it: data not yet delivered by the network would be
        lost with the endpoint.
        """
        text = reason.encode()[:8192]
        words = np.frombuffer(text or b" ", np.uint8)
        state = {"begun": False, "request": 0}

        def read() -> bool:
            if self._inbox.is_parted or self._endpoint.failure is not None:
                return True
            if not state["begun"]:
                state["begun"] = True
                state["request"] = self._endpoint.send(Kind.END, words.ctypes.data, len(text))
            if state["request"] and self._endpoint.finished(state["request"]):
                state["request"] = 0
            return bool(self._endpoint.find(Kind.END))

        with contextlib.suppress(Broken):  # it has already gone
            self._endpoint.wait(read, _LINGER_S)
