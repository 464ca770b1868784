"""Conversion between trainband's errors and Arrow Flight's: users never see gRPC's text."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as flight

from trainband.errors import (
    AuthenticationError,
    DeadlineExceeded,
    PeerError,
    ProtocolError,
    RefusalCode,
    Refused,
    StreamClosed,
    Unreachable,
)
from trainband.runtime.formatting import one_line
from trainband.wire import port as ports
from trainband.wire.handling import ended

# A message in gRPC's trailers must fit into 8 KiB, twice and in base64.
_MESSAGE_LIMIT = 2000
_CODES = frozenset(RefusalCode)
_CLOSED = b"closed\n"
"""Marks the reason for a stream's end, in place of a refusal's code."""
_UNPROVED = (RefusalCode.UNPROVED, RefusalCode.NO_SESSION)
_UNRESOLVED = re.compile(r"errors? resolving |DNS resolution failed")
"""Messages of gRPC's resolvers for an unknown name; gRPC has no code for it."""


def translate(exc: Exception, address: str, timeout_s: float | None = None) -> PeerError:
    """Converts any error of Arrow Flight to one of trainband's."""
    told = bytes(getattr(exc, "extra_info", b"") or b"").decode(errors="replace")
    if told and isinstance(exc, flight.FlightError):
        text, _, message = told.partition("\n")
        code = RefusalCode(text) if text in _CODES else RefusalCode.OTHER
        return (AuthenticationError if code in _UNPROVED else Refused)(one_line(message, _MESSAGE_LIMIT), code)
    if isinstance(exc, flight.FlightUnavailableError):
        if _UNRESOLVED.search(str(exc)):
            return ports.unknown_host(address)
        if "Connection refused" in str(exc):
            return ports.nobody_listens(address)
        return Unreachable(
            f"{address} cannot be reached; check that the task runs, that the address is right, and that no firewall "
            "blocks it."
        )
    if isinstance(exc, flight.FlightTimedOutError):
        waited = "in time" if timeout_s is None else f"in {timeout_s:.3g} s"
        return DeadlineExceeded(f"{address} gave no answer {waited}; check that it runs, or raise the timeout.")
    if isinstance(exc, (flight.FlightCancelledError, pa.ArrowCancelled)):
        return StreamClosed(f"the stream to {address} was cut.")
    if isinstance(exc, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)):
        return AuthenticationError(f"{address} refused this task's credentials.")
    text = one_line(str(exc).partition(". gRPC client debug context")[0].partition("\n")[0], _MESSAGE_LIMIT)
    return ProtocolError(f"{address} sent an answer that trainband does not understand: {text}")


def translate_stream(exc: Exception, address: str) -> PeerError:
    """Like `translate`, for an open stream: if the peer is no longer there, it has closed the stream."""
    told = bytes(getattr(exc, "extra_info", b"") or b"")
    if told.startswith(_CLOSED):
        return ended(address, told.removeprefix(_CLOSED).decode(errors="replace"))
    error = translate(exc, address)
    if isinstance(error, (Refused, ProtocolError)):
        return error
    return StreamClosed(f"{address} has gone; its process ended or the network broke.")


def refuse(refused: Refused) -> flight.FlightError:
    """Converts a refusal to the Arrow Flight error that is raised at the caller."""
    message = _short(str(refused))
    # The extra information, a code and the message, reaches a trainband client unchanged; gRPC decorates the message.
    return flight.FlightServerError(message, extra_info=f"{refused.code}\n{message}".encode())


def closing(reason: str) -> flight.FlightError:
    """Returns the Arrow Flight error that ends a caller's stream with a reason.

    The end message has the reason too. But if the caller keeps sending, gRPC discards unread messages, and
    only the status of the call arrives.
    """
    message = _short(reason)
    return flight.FlightServerError(message, extra_info=_CLOSED + message.encode())


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 2] + " …"
