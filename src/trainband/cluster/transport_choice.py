"""The transport of a job's streams."""

from __future__ import annotations

from enum import StrEnum

from trainband.errors import ClusterError

TRUSTED_FABRIC = "TRAINBAND_TRUSTED_FABRIC"
"""The environment variable; `1`: streams may use UCX although the job has a secret or certificates."""


class TransportChoice(StrEnum):
    """The transport of the training streams between two tasks."""

    AUTO = "auto"
    """Shared memory within a machine; UCX if it is trusted and both ends have it; else Flight."""
    FLIGHT = "flight"
    UCX = "ucx"
    SHARED_MEMORY = "shared-memory"

    @classmethod
    def of(cls, name: str, said_by: str) -> TransportChoice:
        """Returns the one with this name.

        Args:
          said_by: the argument, option or variable that names it, for messages.

        Raises:
          ClusterError: the name is unknown.
        """
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise ClusterError(f"{said_by} = {name!r} is not a transport; use one of {known}.") from None

    def require_trust(self, *, is_protected: bool, trusted_fabric: bool) -> None:
        """Raises `ClusterError` if UCX would undo a job's security.

        UCX accepts messages from any process that reaches its port and follows the memory addresses in them: with UCX
        1.22, one message from a stranger ends the process, or does worse.
        """
        if self is TransportChoice.UCX and is_protected and not trusted_fabric:
            raise ClusterError(
                "the transport ucx was requested, but this job has a secret or certificates, and UCX neither encrypts "
                "nor authenticates; use Flight (--transport flight) or, if no one else reaches the network "
                f"between the tasks, set {TRUSTED_FABRIC}=1."
            )
