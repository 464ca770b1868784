"""What every listener does with its handler, whatever carries the bytes."""

from __future__ import annotations

import logging

from ..errors import ProtocolError, RefusalCode, Refused, StreamClosed, TrainbandError
from .transport import ANYBODY, Caller, Handler, Stream

logger = logging.getLogger("trainband.wire")


def refusal(exc: BaseException, doing: str, address: str) -> Refused:
    """What the other side is told about an exception of our handler.

    An error of ours was written for people and travels as it is. Any other is a defect here: the log of
    this task gets its traceback, the other side only where to look.
    """
    if isinstance(exc, TrainbandError):
        return Refused(str(exc), exc.code if isinstance(exc, Refused) else RefusalCode.OTHER)
    logger.error("%s: internal error while serving %s", address, doing, exc_info=exc)
    return Refused(f"internal error ({type(exc).__name__}) while {address} served {doing}; see the log of {address}.")


def answer(handler: Handler, action: str, body: bytes, address: str, caller: Caller = ANYBODY) -> bytes:
    """Lets the handler answer a control call.

    Raises:
      Refused: the handler raised, whatever it raised.
    """
    try:
        return handler.call(action, body, caller)
    except Exception as exc:
        raise refusal(exc, f"the call {action!r}", address) from exc


def serve(handler: Handler, stream: Stream, address: str, caller: Caller = ANYBODY) -> str:
    """Lets the handler serve a stream to its end.

    Returns:
      Why it ended, for the other end to read; empty where it ended as streams do.
    """
    try:
        handler.stream(stream, caller)
    except StreamClosed:
        return ""
    except Exception as exc:
        return str(refusal(exc, f"a stream of {stream.peer}", address))
    return ""


def ended(peer: str, reason: str) -> StreamClosed:
    """The error for a stream whose other end has closed it."""
    return StreamClosed(f"{peer} closed the stream: {reason}" if reason else f"{peer} closed the stream.")


def too_large(peer: str, nbytes: int, most: int) -> ProtocolError:
    """The error for a frame that is larger than what is expected."""
    return ProtocolError(f"{peer} sent a frame of {nbytes:,} bytes, where {most:,} are the most.")


def vanished(peer: str) -> StreamClosed:
    """The error for a stream whose other end went without a word."""
    return StreamClosed(f"{peer} has gone without closing the stream; its process ended or the network broke.")


def closed_here(peer: str) -> StreamClosed:
    """The error for the use of a stream that this end has closed."""
    return StreamClosed(f"the stream to {peer} was closed at this end.")


def stopping(address: str) -> StreamClosed:
    """The error for a handler that waits in a stream while its listener stops."""
    return StreamClosed(f"{address} is stopping.")
