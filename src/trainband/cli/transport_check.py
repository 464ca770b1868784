"""Whether this machine has the transport that a job is to use, before any task of it starts."""

from __future__ import annotations

from collections.abc import Mapping

from trainband.cluster.carrier import Carrier
from trainband.cluster.resolvers.transport import resolve_carrier, resolve_trusted_fabric


def check_transport(environ: Mapping[str, str], *, encrypted: bool) -> None:
    """Says once, and not by every task, that this machine lacks the transport that was asked for.

    Args:
      environ: of the tasks.
      encrypted: whether they have certificates.

    Raises:
      ClusterError: there is no such transport, or it may not be used with certificates.
      TransportUnavailable: it is not here.
    """
    carrier = resolve_carrier(environ)
    carrier.require_trust(has_certificates=encrypted, trusted_fabric=resolve_trusted_fabric(environ))
    if carrier is Carrier.UCX:
        from trainband.wire.ucx import ucx

        ucx()
