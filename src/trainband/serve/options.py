"""ServeOptions: a server's batching and limits."""

from __future__ import annotations

from dataclasses import dataclass

from trainband.errors import YourError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Settings of a server.

    Attributes:
      max_batch: the most examples computed at once.
      max_delay_s: the longest that a request waits for others while nothing is computed. It waits only if recent
        batches were larger than the queue, so a single client never does.
      max_concurrency: the most requests in progress; others are refused (503).
      max_body_bytes: of one request.
      request_timeout_s: the longest that a request may take (504), and that its body may take to arrive (408).
      drain_s: how long a server that was asked to end still answers while not ready, so that load balancers send it
        nothing more.
      grace_s: the longest that it then waits for requests in progress.
    """

    max_batch: int = 64
    max_delay_s: float = 0.002
    max_concurrency: int = 1024
    max_body_bytes: int = 16 << 20
    request_timeout_s: float = 30.0
    drain_s: float = 0.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        """Validates the settings."""
        for name in ("max_batch", "max_concurrency", "max_body_bytes", "request_timeout_s", "grace_s"):
            if not getattr(self, name) > 0:
                raise YourError(f"{name} must be greater than 0, got {getattr(self, name)}.")
        for name in ("max_delay_s", "drain_s"):
            if not getattr(self, name) >= 0:
                raise YourError(f"{name} must not be negative, got {getattr(self, name)}.")
