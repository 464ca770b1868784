"""The transport of a task's streams, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainband.cluster.transport_choice import TRUSTED_FABRIC, TransportChoice
from trainband.errors import ClusterError

TRANSPORT = "TRAINBAND_TRANSPORT"
"""`auto`, `flight`, `ucx` or `shared-memory`."""
_UCX = "UCX_"


def resolve_transport(environ: Mapping[str, str] | None = None) -> TransportChoice:
    """Returns the transport that the environment requests; `TransportChoice.AUTO` by default.

    Args:
      environ: the environment to read; `os.environ` when `None`.

    Raises:
      ClusterError: the transport is unknown.
    """
    environ = os.environ if environ is None else environ
    return TransportChoice.of(environ.get(TRANSPORT, "") or TransportChoice.AUTO, TRANSPORT)


def resolve_trusted_fabric(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the network between the tasks is declared safe for unencrypted streams.

    Raises:
      ClusterError: the variable is neither 0 nor 1.
    """
    environ = os.environ if environ is None else environ
    asked = environ.get(TRUSTED_FABRIC, "")
    if asked not in ("", "0", "1"):
        raise ClusterError(f"{TRUSTED_FABRIC} = {asked!r}: write 1 to trust the network, or leave it out.")
    return asked == "1"


def ucx_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the user's UCX settings, by their names without `UCX_`. UCX reads them itself."""
    environ = os.environ if environ is None else environ
    return {name.removeprefix(_UCX): value for name, value in environ.items() if name.startswith(_UCX)}
