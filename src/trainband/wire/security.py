"""Security: as whom a task speaks, and how it proves that."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import OBSERVER, Identity
from trainband.wire.tls import Tls


@dataclass(frozen=True, slots=True)
class Security:
    """What a transport needs of a task's credentials.

    Attributes:
      identity: as whom the task speaks.
      secret: the job's; empty where TLS alone says who is there.
      tls: its certificates; `None` for no encryption.
    """

    identity: Identity
    secret: bytes = b""
    tls: Tls | None = None

    @staticmethod
    def of(credentials: Credentials, identity: Identity) -> Security:
        """That of a task with these credentials.

        Raises:
          ClusterError: its certificates cannot be used.
        """
        tls = None if credentials.tls is None else Tls(credentials.tls, identity)
        return Security(identity, credentials.secret, tls)

    @property
    def seals(self) -> bool:
        """Whether calls are sealed with a session."""
        return bool(self.secret) or self.tls is not None


OPEN = Security(OBSERVER)
"""Nobody proves anything."""
