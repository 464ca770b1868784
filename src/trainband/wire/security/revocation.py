"""Ends streams whose peer's certificate has been revoked: they may stay open for hours without a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from trainband.errors import AuthenticationError, ClusterError
from trainband.wire.security.tls import Tls
from trainband.wire.ticker import Ticker
from trainband.wire.transport import ANYBODY, Caller, Handler, Stream, Tensor

LOOK_S = 1.0
"""Interval between checks of the list of revoked certificates."""

logger = logging.getLogger(__name__)


class _Watched:
    """A stream, and the certificate of its other end."""

    def __init__(self, stream: Stream, require_valid: Callable[[], object]) -> None:
        self._stream = stream
        self._require_valid = require_valid

    def tick(self, _now: float) -> None:
        try:
            self._require_valid()
        except AuthenticationError as exc:
            logger.warning("the stream to %s ends: %s", self._stream.peer, exc)
            self._stream.interrupt()
        except ClusterError:  # the list is unreadable, such as during a copy: calls are then refused with this error
            pass


class RevocationWatch:
    """The watched streams of a listener or a connection. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._ticker: Ticker[_Watched] = Ticker(f"revocation-{name}", LOOK_S)
        self._watched: dict[Stream, _Watched] = {}

    def add(self, stream: Stream, require_valid: Callable[[], object]) -> None:
        """Interrupts the stream when `require_valid` raises an `AuthenticationError`."""
        self._watched[stream] = watched = _Watched(stream, require_valid)
        self._ticker.add(watched)

    def remove(self, stream: Stream) -> None:
        """Stops watching a stream."""
        watched = self._watched.pop(stream, None)
        if watched is not None:
            self._ticker.remove(watched)

    def close(self) -> None:
        """Ends its thread. Idempotent."""
        self._ticker.close()


class RevocableHandler:
    """A handler whose streams end when the certificate that opened them is revoked."""

    def __init__(self, handler: Handler, tls: Tls, name: str) -> None:
        self._handler = handler
        self._tls = tls
        self._watch = RevocationWatch(name)

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:
        return self._handler.call(action, body, caller)

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:
        self._watch.add(stream, lambda: self._tls.certified(caller.certificate))
        try:
            self._handler.stream(stream, caller)
        finally:
            self._watch.remove(stream)

    def tensors(self) -> Sequence[Tensor]:
        return self._handler.tensors()

    def read(self, name: str) -> tuple[int, NDArray[Any]]:
        return self._handler.read(name)

    def close(self) -> None:
        """Ends its thread. Idempotent."""
        self._watch.close()
