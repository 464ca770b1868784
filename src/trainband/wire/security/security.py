"""Security: a task's identity and its proof."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import OBSERVER, Identity
from trainband.wire.security.tls import Tls


@dataclass(frozen=True, slots=True)
class Security:
    """A transport's view of a task's credentials.

    Attributes:
      identity: the task's identity.
      secret: the job's; empty if only TLS authenticates.
      tls: its certificates; `None` for no encryption.
    """

    identity: Identity
    secret: bytes = field(default=b"", repr=False)
    tls: Tls | None = None

    @staticmethod
    def of(credentials: Credentials, identity: Identity) -> Security:
        """Returns the security of a task with these credentials.

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
"""No authentication."""
