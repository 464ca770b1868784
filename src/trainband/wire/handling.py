"""Calling a listener's handler, and the errors of streams, for all transports."""

from __future__ import annotations

import logging

from trainband.errors import DeadlineExceeded, ProtocolError, RefusalCode, Refused, StreamClosed, TrainbandError
from trainband.runtime.formatting import one_line
from trainband.wire.transport import ANYBODY, Caller, Handler, Stream

logger = logging.getLogger("trainband.wire")


def refusal(exc: BaseException, doing: str, address: str) -> Refused:
    """Converts an exception of our handler to the error sent to the other end.

    A trainband error was written for users and is sent unchanged. Any other is a bug here: this task logs its
    traceback, and the other end is only told where to look.
    """
    if isinstance(exc, TrainbandError):
        return Refused(str(exc), exc.code if isinstance(exc, Refused) else RefusalCode.OTHER)
    logger.error("%s: internal error while serving %s", address, doing, exc_info=exc)
    return Refused(f"internal error ({type(exc).__name__}) while {address} served {doing}; see the log of {address}.")


def answer(handler: Handler, action: str, body: bytes, address: str, caller: Caller = ANYBODY) -> bytes:
    """Has the handler answer a control call.

    Raises:
      Refused: the handler raised any exception.
    """
    try:
        return handler.call(action, body, caller)
    except Exception as exc:
        raise refusal(exc, f"the call {action!r}", address) from exc


def serve(handler: Handler, stream: Stream, address: str, caller: Caller = ANYBODY) -> str:
    """Has the handler serve a stream to its end.

    Returns:
      the reason for the other end to read; empty if the stream ended normally.
    """
    try:
        handler.stream(stream, caller)
    except StreamClosed:
        return ""
    except Exception as exc:
        return str(refusal(exc, f"a stream of {stream.peer}", address))
    return ""


def ended(peer: str, reason: str) -> StreamClosed:
    """Returns the error for a stream closed by the other end."""
    return StreamClosed(f"{peer} closed the stream: {one_line(reason)}" if reason else f"{peer} closed the stream.")


def too_large(peer: str, nbytes: int, most: int) -> ProtocolError:
    """Returns the error for a frame that is larger than expected."""
    return ProtocolError(f"{peer} sent a frame of {nbytes:,} bytes, but {most:,} is the limit.")


def vanished(peer: str) -> StreamClosed:
    """Returns the error for a stream whose other end has gone without closing it."""
    return StreamClosed(f"{peer} has gone without closing the stream; its process ended or the network broke.")


def not_taken(peer: str, stall_s: float) -> DeadlineExceeded:
    """Returns the error for a stream whose other end does not receive."""
    return DeadlineExceeded(
        f"{peer} has taken nothing from its stream for {stall_s} s; check that it is not stopped, or raise "
        "Timeouts.stall_s."
    )


def silent(peer: str, stall_s: float) -> DeadlineExceeded:
    """Returns the error for a stream whose other end does not even send keepalives."""
    return DeadlineExceeded(
        f"{peer} sent no keepalive for {stall_s} s; check that it is not stopped and that the network is up, or raise "
        "Timeouts.stall_s."
    )


def closed_here(peer: str) -> StreamClosed:
    """Returns the error for using a stream that this end has closed."""
    return StreamClosed(f"the stream to {peer} was closed at this end.")


def stopping(address: str) -> StreamClosed:
    """Returns the error for a handler that waits in a stream while its listener stops."""
    return StreamClosed(f"{address} is stopping.")
