"""Refusal: the reason and HTTP status code of a refused request."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):
    """A request that cannot be answered. It ends as a response and never leaves the server.

    Args:
      status: HTTP status code.
      message: a sentence for the client.
      headers: additional response headers.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}
