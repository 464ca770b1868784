"""Arrow Flight: how trainband talks between machines, and its face to any other Flight client.

The only folder that knows `pyarrow.flight`. Control calls are DoAction, streams are DoExchange (`exchange.py`),
and the variables can be listed and read by clients that know nothing of trainband:

    client = pyarrow.flight.connect("grpc://10.0.0.7:2222")
    for info in client.list_flights():
        print(info.descriptor.path, info.schema)
    table = client.do_get(pyarrow.flight.Ticket("hidden/kernel")).read_all()
    kernel = table["values"].combine_chunks().to_numpy_ndarray()
"""

from __future__ import annotations

from trainband.cluster.credentials import NO_CREDENTIALS, Credentials
from trainband.cluster.identity import OBSERVER, Identity
from trainband.wire.flight.connection import FlightConnection as FlightConnection
from trainband.wire.flight.doorkeeper import ConnectionLimits as ConnectionLimits
from trainband.wire.flight.listener import FlightListener as FlightListener
from trainband.wire.security import Security
from trainband.wire.transport import Connection, Handler, Listener, Timeouts


class FlightTransport:
    """Arrow Flight for calls and streams.

    Args:
      credentials: with which both ends prove who they are.
      identity: as whom this one speaks.
    """

    def __init__(self, credentials: Credentials = NO_CREDENTIALS, identity: Identity = OBSERVER) -> None:
        self._credentials = credentials
        self._security = Security.of(self._credentials, identity)

    def listen(self, address: str, handler: Handler, timeouts: Timeouts) -> Listener:
        return FlightListener(address, handler, timeouts, security=self._security)

    def connect(self, address: str, timeouts: Timeouts) -> Connection:
        return FlightConnection(address, timeouts, self._security)

    def speaking_as(self, identity: Identity) -> FlightTransport:
        return FlightTransport(self._credentials, identity)
