"""A plain Arrow Flight client of a job that asks for a proof: to look into it from Python, with pyarrow alone."""

from __future__ import annotations

from typing import Any

from trainband.cluster.identity import OBSERVER
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.wire.flight import FlightConnection
from trainband.wire.security import Security
from trainband.wire.transport import Timeouts


def flight_client(address: str, *, timeout_s: float = 10.0) -> Any:
    """A `pyarrow.flight.FlightClient` that may list and read the variables of a ps.

    It proves that it belongs to the job with the credentials of the environment (`TRAINBAND_SECRET_FILE`,
    `TRAINBAND_TLS`) or, for a job that `trainband run` of the same user has started on this machine, with that job's.
    The proof counts for the client's connection: where that breaks, make another client.

    Args:
      address: of a ps, `host:port`; `grpc+tcp://` or `grpc+tls://` before it is left out.
      timeout_s: seconds to wait for the ps.

    Raises:
      AuthenticationError: one of the two has not proved that it belongs to the job.
      ClusterError: the address or the credentials cannot be used.
      Unreachable, DeadlineExceeded: nobody is there, or does not answer.
    """
    address = address.rpartition("://")[2]
    security = Security.of(credentials_for(address), OBSERVER)
    timeouts = Timeouts(connect_s=timeout_s, call_s=timeout_s)
    return FlightConnection(address, timeouts, security).proved_client(timeout_s=timeout_s)
