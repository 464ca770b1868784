"""Which way the streams of a job travel."""

from __future__ import annotations

from enum import StrEnum

from trainband.errors import ClusterError


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
