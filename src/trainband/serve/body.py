"""Body: the content of a request, limited whatever its headers claim."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from trainband.runtime.http.asgi import Receive
from trainband.serve.refusal import Refusal
from trainband.serve.tensors import WINDOW

IDENTITY = "identity"
_WINDOW_BITS = {IDENTITY: 0, "gzip": 31, "deflate": 15}
"""zlib's `wbits` for each Content-Encoding."""
_MOST_RATIO = 1032
"""Largest compression ratio of deflate: https://zlib.net/zlib_tech.html."""


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a body.

    Attributes:
      packed: as received.
      encoding: see `encoding_of`.
      limit: bytes that it may have unpacked.
    """

    packed: bytes
    encoding: str
    limit: int

    @property
    def held(self) -> int:
        """Bytes of memory that it may take."""
        return unpacked_at_most(len(self.packed), self.encoding, self.limit)

    @property
    def is_long(self) -> bool:
        """Whether it may take long to read."""
        return self.held > WINDOW

    def unpacked(self) -> bytes:
        """Decodes the body.

        Raises:
          Refusal: it is too large, cut off, or invalid in its encoding.
        """
        if self.encoding == IDENTITY:
            return self.packed
        unpacker = zlib.decompressobj(_WINDOW_BITS[self.encoding])
        try:
            body = unpacker.decompress(self.packed, self.limit)
        except zlib.error as exc:
            raise Refusal(400, f"the body is not valid {self.encoding}: {exc}.") from exc
        if unpacker.unconsumed_tail:
            raise too_large(self.limit)
        if not unpacker.eof:
            raise Refusal(400, f"the {self.encoding} data of the body is incomplete.")
        return body


def unpacked_at_most(nbytes: int, encoding: str, limit: int) -> int:
    """Returns the number of bytes that this many may unpack to."""
    return nbytes if encoding == IDENTITY else min(limit, nbytes * _MOST_RATIO)


def packed(data: bytes, encoding: str) -> bytes:
    """Encodes an answer in a Content-Encoding."""
    packer = zlib.compressobj(level=1, wbits=_WINDOW_BITS[encoding])
    return packer.compress(data) + packer.flush()


def encoding_of(headers: Mapping[bytes, bytes]) -> str:
    """Returns the Content-Encoding of a request.

    Raises:
      Refusal: it is not supported.
    """
    encoding = headers.get(b"content-encoding", IDENTITY.encode()).decode("latin-1").lower()
    if encoding not in _WINDOW_BITS:
        raise Refusal(415, f"encoding {encoding[:40]} is not supported; use {', '.join(_WINDOW_BITS)}.")
    return encoding


async def received(receive: Receive, said: int | None, limit: int) -> bytes:
    """Receives the body of a request.

    Args:
      receive: see ASGI.
      said: its Content-Length.
      limit: bytes that it may have.

    Raises:
      Refusal: it is too large, or its length differs from `said`.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Refusal(400, "the body ends too soon.")
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts = bytearray(body)
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, f"the body ends after {len(parts):,} bytes.")
            parts += message.get("body", b"")
            if len(parts) > limit:
                break
        body = bytes(parts)
    if len(body) > limit:
        raise too_large(limit)
    if said is not None and said != len(body):
        raise Refusal(400, f"Content-Length is {said}, but the body has {len(body):,} bytes.")
    return body


def too_large(limit: int) -> Refusal:
    """Returns the refusal of a body that exceeds the limit."""
    return Refusal(413, f"the body is larger than {limit:,} bytes.", {"Connection": "close"})
