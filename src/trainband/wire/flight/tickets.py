"""Tickets of reads: proofs for Flight's own read methods, which have no trainband body to seal.

A client that has a session sends a sealed ticket in a header of each ListFlights, GetFlightInfo and DoGet. Like a
sealed call, a ticket is for one method and counts once. So the address of a connection, which another process can reuse
once the connection has ended, admits no one.
"""

from __future__ import annotations

from typing import Any

import pyarrow.flight as flight

from trainband.wire.security import handshake
from trainband.wire.security.handshake import ClientSide

MIDDLEWARE = "trainband.tickets"
"""Key under which a listener's handlers find the ticket of their call."""
_HEADER = "trainband-ticket-bin"
_READS = frozenset({flight.FlightMethod.LIST_FLIGHTS, flight.FlightMethod.GET_FLIGHT_INFO, flight.FlightMethod.DO_GET})


def read_action(method: Any) -> str:
    """Returns the action for which a Flight method's ticket is sealed."""
    return f"{handshake.READ}/{method.name}"


class _Sending(flight.ClientMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, ticket: bytes) -> None:
        self._ticket = ticket

    def sending_headers(self) -> dict[str, bytes]:
        return {_HEADER: self._ticket}


class TicketSender(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Adds a ticket to each read of a client.

    Attributes:
      side: seals them; `None` until the client has proved its identity, and if no proof is required.
    """

    def __init__(self) -> None:
        self.side: ClientSide | None = None

    def start_call(self, info: Any) -> _Sending | None:
        side = self.side
        if side is None or info.method not in _READS:
            return None
        return _Sending(side.seal(read_action(info.method), b"")[1])


class _Received(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, action: str, ticket: bytes) -> None:
        self.action = action
        self.ticket = ticket


class TicketReceiver(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps the ticket of each read for its handler, which opens it."""

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> _Received | None:
        if info.method not in _READS:
            return None
        tickets = headers.get(_HEADER, [])
        is_one = len(tickets) == 1 and isinstance(tickets[0], bytes)
        return _Received(read_action(info.method), bytes(tickets[0]) if is_one else b"")  # type: ignore[arg-type]


def ticket_of(context: Any) -> tuple[str, bytes]:
    """Returns the action of this context's read and its ticket; empty without one."""
    received: _Received = context.get_middleware(MIDDLEWARE)
    return received.action, received.ticket
