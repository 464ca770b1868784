"""By which way a task's streams travel, from the environment that its launcher, or whoever starts it, has set."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainband.cluster.carrier import TRUSTED_FABRIC, Carrier
from trainband.errors import ClusterError

TRANSPORT = "TRAINBAND_TRANSPORT"
"""`auto`, `flight`, `ucx` or `shared-memory`."""
_UCX = "UCX_"


def resolve_carrier(environ: Mapping[str, str] | None = None) -> Carrier:
    """What the environment asks for; `Carrier.AUTO` where it says nothing.

    Args:
      environ: the environment to look in; `os.environ` when `None`.

    Raises:
      ClusterError: it names no transport.
    """
    environ = os.environ if environ is None else environ
    return Carrier.of(environ.get(TRANSPORT, "") or Carrier.AUTO, TRANSPORT)


def resolve_trusted_fabric(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the network between the tasks is declared safe for streams that are not encrypted.

    Raises:
      ClusterError: the variable is neither 0 nor 1.
    """
    environ = os.environ if environ is None else environ
    asked = environ.get(TRUSTED_FABRIC, "")
    if asked not in ("", "0", "1"):
        raise ClusterError(f"{TRUSTED_FABRIC} = {asked!r}: write 1 to trust the network, or leave it out.")
    return asked == "1"


def ucx_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of UCX that the user has made, by their names without `UCX_`. UCX reads them itself."""
    environ = os.environ if environ is None else environ
    return {name.removeprefix(_UCX): value for name, value in environ.items() if name.startswith(_UCX)}
