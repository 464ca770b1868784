"""Which way the streams of a job travel."""

from __future__ import annotations

from enum import StrEnum

from trainband.errors import ClusterError

TRUSTED_FABRIC = "TRAINBAND_TRUSTED_FABRIC"
"""The environment variable; `1`: streams may go over UCX, unencrypted, though the job has certificates."""


class Carrier(StrEnum):
    """What carries the training streams between two tasks."""

    AUTO = "auto"
    """Shared memory within a machine, UCX where both ends have it, else Flight."""
    FLIGHT = "flight"
    UCX = "ucx"
    SHARED_MEMORY = "shared-memory"

    @classmethod
    def of(cls, name: str, said_by: str) -> Carrier:
        """The one of that name.

        Args:
          said_by: the argument, option or variable that gives it, for messages.

        Raises:
          ClusterError: there is none.
        """
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise ClusterError(f"{said_by} = {name!r} is no transport; there are {known}.") from None

    def require_trust(self, *, has_certificates: bool, trusted_fabric: bool) -> None:
        """Raises `ClusterError` where streams that should be encrypted would travel in the open."""
        if self is Carrier.UCX and has_certificates and not trusted_fabric:
            raise ClusterError(
                "the transport ucx was asked for, but this job has certificates, and UCX does not encrypt what it "
                "carries: leave the streams on Flight (--transport flight), or, where nobody else can listen on the "
                f"network between the tasks, say so with {TRUSTED_FABRIC}=1."
            )
