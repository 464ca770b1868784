"""Errors of ours and of Arrow Flight, each made of the other: nothing of gRPC's text is for users."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as flight

from trainband.errors import (
    AuthenticationError,
    DeadlineExceeded,
    NobodyListens,
    PeerError,
    ProtocolError,
    RefusalCode,
    Refused,
    StreamClosed,
    Unreachable,
)
from trainband.wire import port as ports

# A message of gRPC's trailers must fit into 8 KiB, twice and in base64.
_MESSAGE_LIMIT = 2000
_CODES = frozenset(RefusalCode)
_UNPROVED = (RefusalCode.UNPROVED, RefusalCode.NO_SESSION)
_UNRESOLVED = re.compile(r"errors? resolving |DNS resolution failed")
"""What gRPC's resolvers say where a name has no address; gRPC has no code for it."""


def translate(exc: Exception, address: str, timeout_s: float | None = None) -> PeerError:
    """The error of ours for any error that Arrow Flight raises."""
    told = bytes(getattr(exc, "extra_info", b"") or b"").decode(errors="replace")
    if told and isinstance(exc, flight.FlightError):
        text, _, message = told.partition("\n")
        code = RefusalCode(text) if text in _CODES else RefusalCode.OTHER
        return (AuthenticationError if code in _UNPROVED else Refused)(message, code)
    if isinstance(exc, flight.FlightUnavailableError):
        if _UNRESOLVED.search(str(exc)):
            return ports.unknown_host(address)
        kind = NobodyListens if "Connection refused" in str(exc) else Unreachable
        return kind(f"nobody listens at {address}; check that the task runs and that the address is right.")
    if isinstance(exc, flight.FlightTimedOutError):
        waited = "in time" if timeout_s is None else f"in {timeout_s:.3g} s"
        return DeadlineExceeded(f"{address} gave no answer {waited}; check that it runs, or wait for longer.")
    if isinstance(exc, (flight.FlightCancelledError, pa.ArrowCancelled)):
        return StreamClosed(f"the stream to {address} was cut.")
    if isinstance(exc, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)):
        return AuthenticationError(f"{address} does not let us in.")
    text = str(exc).partition(". gRPC client debug context")[0].partition("\n")[0]
    return ProtocolError(f"{address} answered in a way that trainband does not understand: {text}")


def translate_stream(exc: Exception, address: str) -> PeerError:
    """As `translate`, for a stream that was open: there, whoever is not there any more has closed it."""
    error = translate(exc, address)
    if isinstance(error, (Refused, ProtocolError)):
        return error
    return StreamClosed(f"{address} has gone; its process ended or the network broke.")


def refuse(refused: Refused) -> flight.FlightError:
    """What Arrow Flight raises at the caller's for a refusal of ours."""
    message = str(refused)
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 2] + " …"
    # The extra information, a code and the message, reaches a trainband client as it is; gRPC decorates the message.
    return flight.FlightServerError(message, extra_info=f"{refused.code}\n{message}".encode())
