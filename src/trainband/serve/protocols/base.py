"""Protocol: the seam for reading and answering prediction requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.serve.model import LoadedVersion

JSON = "application/json"
MOST_DIGITS = 18
"""Digits of a byte count in a header."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer over HTTP."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """Encodes a value as JSON."""
        return cls(msgspec.json.encode(value), status, headers=headers or {})


Write = Callable[[Mapping[str, NDArray[Any]], LoadedVersion], Response]
"""Maps outputs and their version to the response."""


class InferenceProtocol(Protocol):
    """One protocol for one model."""

    name: str
    """Name in metrics."""

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> tuple[dict[str, NDArray[Any]], Write]:
        """Reads a request; returns its inputs, and a function that writes the response.

        Args:
          body: as received.
          headers: by name, in lower case.

        Raises:
          DataError: it cannot be read.
        """

    def metadata(self, version: LoadedVersion) -> Any:
        """Returns the model's signature, as a value for JSON."""


def number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    """Parses a header that is a count of bytes; `None` without it.

    Raises:
      DataError: it is not a count.
    """
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise DataError(f"{name.decode()} is {text[:40].decode('latin-1')!r}, which is not a number of bytes.")
    return int(text)
