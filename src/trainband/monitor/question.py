"""One request to a ps, and the explanation if no ps answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

from trainband.cluster.address import Address
from trainband.errors import DeadlineExceeded, PeerError, ProtocolError, StreamClosed, UnknownHost, Unreachable
from trainband.wire.transport import Connection

LOOK_S = 0.5
"""Seconds between two checks for an answer."""


def call(
    connection: Connection,
    action: str,
    timeout_s: float,
    while_waiting: Callable[[], None] = lambda: None,
    body: bytes = b"",
) -> bytes:
    """Returns the answer to a call. Ctrl-C interrupts it at once: a thread blocked in Flight sees no signals."""
    answer: Future[bytes] = Future()

    def ask() -> None:
        try:
            answer.set_result(connection.call(action, body, timeout_s=timeout_s))
        except BaseException as exc:
            answer.set_exception(exc)

    threading.Thread(target=ask, name="trainband-question", daemon=True).start()
    while not wait([answer], timeout=LOOK_S).done:
        while_waiting()
    return answer.result()


def explained(exc: PeerError, address: str, advice: str, *, waited_s: float, left_s: float, context: str) -> PeerError:
    """Returns an error of `call`, explained for a user who expected a ps there.

    Args:
      advice: begins "Give ...", without a full stop.
      waited_s: seconds allowed for the answer.
      left_s: seconds that checking for a listener may take.
      context: prefix of the message.
    """
    if isinstance(exc, UnknownHost):
        return UnknownHost(f"{context}{exc} {advice}.")
    if isinstance(exc, Unreachable | StreamClosed):
        if _accepts_connections(address, left_s):
            return _no_ps(address, advice, context)
        return Unreachable(
            f"{context}nothing listens at {address}. {advice}: workers listen on nothing, and a job that has ended "
            "has no ps."
        )
    if isinstance(exc, DeadlineExceeded):
        return DeadlineExceeded(
            f"{context}{address} gave no answer in {waited_s:g} s. {advice}, and check whether that task is stopped or "
            "behind a firewall."
        )
    if isinstance(exc, ProtocolError):
        return _no_ps(address, advice, context)
    return exc


def _no_ps(address: str, advice: str, context: str) -> ProtocolError:
    return ProtocolError(
        f"{context}the server at {address} is not a trainband ps; it may be the first worker of a job without ps, "
        f"which cannot be asked. {advice}."
    )


def _accepts_connections(address: str, timeout_s: float) -> bool:
    """Whether anything listens, a ps or not. Runs in a thread, because name resolution has no deadline."""
    target = Address.parse(address, address)
    answered = threading.Event()
    deadline = time.monotonic() + timeout_s

    def probe() -> None:
        with contextlib.suppress(OSError):
            left_s = max(0.01, deadline - time.monotonic())
            socket.create_connection((target.host, target.port), timeout=left_s).close()
            answered.set()

    thread = threading.Thread(target=probe, name="trainband-probe", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answered.is_set()
