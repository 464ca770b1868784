"""Streams over UCX."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import DeadlineExceeded, PeerError
from ..serving import closed_here, stopping, vanished
from ..transport import Frame, Timeouts
from .frames import Inbox, Kind, Outbox
from .pipe import Broken, Pipe

_LINGER_S = 1.0
"""How long a stream that closes waits for the other end to have read what it was sent."""


class UcxStream:
    """One end of a stream over UCX.

    A thread that waits in it does UCX's work meanwhile. While one sends and the other end sends too, what comes is
    received into memory of its own, so that neither waits for the other. The `Pulse` of the connection or listener
    sends a sign of life where nothing else was sent.

    Args:
      pipe: connected, and welcomed at the other end.
      forget: called when the stream is closed.
    """

    def __init__(self, pipe: Pipe, peer: str, timeouts: Timeouts, forget: Callable[[UcxStream], None]) -> None:
        self._pipe = pipe
        self._peer = peer
        self._timeouts = timeouts
        self._forget = forget
        self._outbox, self._inbox = Outbox(pipe), Inbox(pipe, peer)
        self._send_lock, self._receive_lock, self._close_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._closed = self._released = self._is_stopping = False
        self._signs: list[int] = []
        self._last_sent = time.monotonic()
        self._waiting_since: float | None = None
        self._heard_at = time.monotonic()
        with pipe.lock:
            names = "+".join(pipe.transports())
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
        if self._receive_lock.acquire(blocking=False):  # nobody waits there, who would have noticed
            try:
                self._pipe.wait(self._look, 0.0)
            finally:
                self._receive_lock.release()
        return self._inbox.over is None and self._pipe.failure is None

    @property
    def keeps(self) -> bool:
        return False  # what is on the network goes with it

    @property
    def silent_s(self) -> float:
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    # --- sending

    def send(self, header: bytes, body: Sequence[NDArray[np.generic]] = ()) -> None:
        with self._send_lock:
            self._raise_if_over()
            done = False
            try:
                self._outbox.load(header, body)
                with self._pipe.lock:
                    done = self._outbox.advance()
                if not done:
                    self._transmit()
                    done = True
            except Broken as exc:
                raise self._gone() from exc
            finally:
                if not done:  # half a frame is out: nothing that follows could be read
                    self.interrupt()
            self._last_sent = time.monotonic()

    def _raise_if_over(self) -> None:
        if self._closed:
            raise closed_here(self._peer)
        if self._inbox.over is not None:
            raise self._inbox.over

    def _transmit(self) -> None:
        taken = -1
        while taken < self._outbox.taken:  # as long as the other end takes something
            taken = self._outbox.taken
            if self._pipe.wait(self._advance, self._timeouts.stall_s):
                self._raise_if_over()
                if self._inbox.is_parted or self._pipe.failure is not None:
                    raise self._gone()
                return
        self._raise_if_over()
        raise DeadlineExceeded(
            f"{self._peer} has taken nothing from its stream for {self._timeouts.stall_s} s; check that it is "
            "not stopped, or raise Timeouts.stall_s."
        )

    def _advance(self) -> bool:
        """Whether the frame has gone, or cannot go any more."""
        if self._closed:
            return True
        if self._outbox.advance():
            return True
        # The other end may be sending too. If nobody receives here, it is helped on.
        if self._receive_lock.acquire(blocking=False):
            try:
                self._inbox.advance()
            finally:
                self._receive_lock.release()
        return self._inbox.look_for_end() or self._pipe.failure is not None

    def _gone(self) -> PeerError:
        return closed_here(self._peer) if self._closed else self._inbox.over or vanished(self._peer)

    # --- receiving

    def receive(self, timeout_s: float) -> Frame | None:
        with self._receive_lock:
            if self._closed:
                raise closed_here(self._peer)
            self._inbox.give_back()
            self._waiting_since = time.monotonic()
            try:
                return self._await_frame(time.monotonic() + timeout_s)
            finally:
                self._waiting_since = None

    def _await_frame(self, deadline: float) -> Frame | None:
        self._heard_at = time.monotonic()
        while True:
            stalled_at = self._heard_at + self._timeouts.stall_s
            # A frame that has begun is waited for, as long as something comes.
            until = stalled_at if self._inbox.is_within else min(deadline, stalled_at)
            self._pipe.wait(self._look, max(0.0, until - time.monotonic()))
            if self._closed:
                raise closed_here(self._peer)
            if self._inbox.is_whole:
                return self._inbox.take()
            if self._inbox.over is not None:
                raise self._inbox.over
            if self._is_stopping:
                raise stopping("this task's listener")
            now = time.monotonic()
            if now >= self._heard_at + self._timeouts.stall_s:
                self._inbox.over = DeadlineExceeded(
                    f"{self._peer} gave no sign of life for {self._timeouts.stall_s} s; check that it is not stopped "
                    "and that the network is up, or raise Timeouts.stall_s."
                )
            elif now >= deadline and not self._inbox.is_within:
                return None

    def _look(self) -> bool:
        """Takes what has come; whether `receive` has to do with it."""
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
        if self._pipe.failure is not None:
            self._inbox.over = vanished(self._peer)
            return True
        return self._closed or self._is_stopping

    # --- signs of life

    def tick(self, now: float) -> None:
        """The pulse: a sign of life where one is due, and no wait."""
        if self._closed or now - self._last_sent < self._timeouts.heartbeat_s / 2:
            return
        if not self._send_lock.acquire(blocking=False):
            return  # what is being sent is a sign of life
        try:
            self._pipe.wait(self._send_sign, 0.0)
        except Broken:  # whoever uses the stream next is told; the pulse has nobody to tell
            pass
        finally:
            self._last_sent = now
            self._send_lock.release()

    def _send_sign(self) -> bool:
        if self._closed or self._pipe.failure is not None:
            return True
        self._signs = [request for request in self._signs if not self._pipe.finished(request)]
        if not self._signs and (request := self._pipe.send(Kind.ALIVE, 0, 0)):
            self._signs.append(request)
        return True

    def stop_receiving(self) -> None:
        """Has a handler that waits for a frame here stop; one that works on a frame may still answer it."""
        self._is_stopping = True
        self._pipe.wake()

    # --- the end

    def refuse_more(self) -> None:
        self.interrupt()

    def interrupt(self) -> None:
        was_open, self._closed = not self._closed, True
        if was_open:
            # An endpoint that is closed by force stays connected until its worker goes: it has to be said.
            with self._pipe.lock, contextlib.suppress(Broken):
                self._pipe.send(Kind.END, 0, 0)
        self._pipe.wake()

    def close(self) -> None:
        self.end("")

    def end(self, reason: str) -> None:
        """Closes with parting words."""
        with self._close_lock:
            if self._released:
                return
            # A frame on its way is waited for: this end's other thread may be sending it.
            free = self._send_lock.acquire(timeout=self._timeouts.grace_s)
            is_open, self._closed = not self._closed, True
            try:
                self._pipe.wake()
                if free and is_open:
                    self._part(reason)
            finally:
                if free:
                    self._send_lock.release()
            self._pipe.destroy()
            self._released = True
        self._forget(self)

    def _part(self, reason: str) -> None:
        """Says that it is over, and waits for the other end to have read that: what the network has not delivered
        would go with the endpoint.
        """
        text = reason.encode()[:8192]
        words = np.frombuffer(text or b" ", np.uint8)
        state = {"begun": False, "request": 0}

        def read() -> bool:
            if self._inbox.over is not None or self._pipe.failure is not None:
                return True
            if not state["begun"]:
                state["begun"] = True
                state["request"] = self._pipe.send(Kind.END, words.ctypes.data, len(text))
            if state["request"] and self._pipe.finished(state["request"]):
                state["request"] = 0
            return bool(self._pipe.find(Kind.END))

        with contextlib.suppress(Broken):  # it has gone already
            self._pipe.wait(read, _LINGER_S)
