"""Records to bytes and back: MessagePack with a checked schema, by msgspec. Never pickle, never code objects."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from trainband.errors import ProtocolError
from trainband.runtime.formatting import printable

MOST_OF_A_NAME = 200
MOST_OF_A_REASON = 300
"""Characters: a reason may quote what was sent."""

Record = TypeVar("Record")

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_building = threading.Lock()


def encode(record: msgspec.Struct) -> bytes:
    """A record as bytes."""
    return _encoder.encode(record)


def decode(data: bytes, kind: type[Record], sender: str) -> Record:
    """Bytes as a record of `kind` from `sender`.

    Raises:
      ProtocolError: the bytes are no such record; the message names the sender and the field.
    """
    record: Record = decode_any(data, kind, sender)
    return record


def decode_any(data: bytes, kind: Any, sender: str) -> Any:
    """As `decode`; `kind` may also be a union of tagged records.

    Raises:
      ProtocolError: the bytes are no such record; the message names the sender and the field.
    """
    decoder = _decoder(kind)
    try:
        return decoder.decode(data)
    # Not msgspec's errors alone: text may not be UTF-8, nests may be too deep, lengths larger than memory, and a record
    # that checks itself raises what it likes.
    except Exception as exc:
        name = printable(getattr(kind, "__name__", str(kind)), MOST_OF_A_NAME)
        why = printable(str(exc), MOST_OF_A_REASON) or type(exc).__name__
        raise ProtocolError(
            f"{sender} sent something that is no {name} ({why}); check that both run the same version of trainband."
        ) from exc


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        # One thread at a time: msgspec 0.22 shows a type that one thread is looking into, half done, to another whose
        # type has it too; that one's decoder then follows a null pointer.
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder
