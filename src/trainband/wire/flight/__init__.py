"""Arrow Flight: communication between machines, readable by any other Flight client.

The only folder that imports `pyarrow.flight`. Control calls are DoAction, streams are DoExchange (`stream.py`),
and clients that do not know trainband can list and read the variables:

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
from trainband.wire.flight.connection_guard import ConnectionLimits as ConnectionLimits
from trainband.wire.flight.listener import FlightListener as FlightListener
from trainband.wire.security.security import Security
from trainband.wire.transport import Connection, Handler, Listener, Timeouts


class FlightTransport:
    """Arrow Flight for calls and streams.

    Args:
      credentials: used by both ends to prove their identity.
      identity: this task's identity.
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
