"""A plain Arrow Flight client of a job that requires a proof: reads the job from Python with pyarrow alone."""

from __future__ import annotations

from typing import Any

from trainband.cluster.identity import OBSERVER
from trainband.cluster.resolvers.local_jobs import credentials_for
from trainband.wire.flight import FlightConnection
from trainband.wire.security.security import Security
from trainband.wire.transport import Timeouts


def flight_client(address: str, *, timeout_s: float = 10.0) -> Any:
    """A `pyarrow.flight.FlightClient` that may list and read the variables of a ps.

    It proves that it belongs to the job with the credentials of the environment (`TRAINBAND_SECRET_FILE`,
    `TRAINBAND_TLS`) or, for a job that the same user has started on this machine with `trainband run`, with that job's.
    Each read carries a proof, which is valid for the client's connection: if that breaks, make another client.

    Args:
      address: of a ps, `host:port`; a leading `grpc+tcp://` or `grpc+tls://` is ignored.
      timeout_s: seconds to wait for the ps.

    Raises:
      AuthenticationError: one of the two has not proved that it belongs to the job.
      ClusterError: the address or the credentials are invalid.
      Unreachable, DeadlineExceeded: the ps cannot be reached, or does not answer.
    """
    address = address.rpartition("://")[2]
    security = Security.of(credentials_for(address), OBSERVER)
    timeouts = Timeouts(connect_s=timeout_s, call_s=timeout_s)
    return FlightConnection(address, timeouts, security).proved_client(timeout_s=timeout_s)
