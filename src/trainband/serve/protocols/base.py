"""Protocol: the seam behind which each way to ask for a prediction is read and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from numpy.typing import NDArray

from trainband.errors import DataError
from trainband.serve.model import LoadedVersion

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer over HTTP."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """A value as JSON."""
        return cls(msgspec.json.encode(value), status, headers=headers or {})


Write = Callable[[Mapping[str, NDArray[Any]], LoadedVersion], Response]
"""Outputs and the version that gave them -> the response."""


class InferenceProtocol(Protocol):
    """One protocol for one model."""

    name: str
    """In metrics."""

    def read(self, body: bytes, headers: Mapping[bytes, bytes]) -> tuple[dict[str, NDArray[Any]], Write]:
        """A request's inputs, and how it is answered.

        Args:
          body: what came.
          headers: by name, in lower case.

        Raises:
          DataError: it cannot be read.
        """

    def metadata(self, version: LoadedVersion) -> Any:
        """What the model takes and gives, as a value for JSON."""


def number(headers: Mapping[bytes, bytes], name: bytes) -> int | None:
    """A header that is a count of bytes; `None` where it is not given.

    Raises:
      DataError: it is something else.
    """
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise DataError(f"{name.decode()} is {text.decode('latin-1')!r}, which is no number of bytes.")
    return int(text)
