"""Records to bytes and back: MessagePack with a checked schema, by msgspec. Never pickle, never code objects."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from trainband.errors import ProtocolError

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
    try:
        return _decoder(kind).decode(data)
    except msgspec.DecodeError as exc:
        name = getattr(kind, "__name__", str(kind))
        raise ProtocolError(
            f"{sender} sent something that is no {name} ({exc}); check that both run the same version of trainband."
        ) from exc


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        # One thread at a time: msgspec 0.22 shows a type that one thread is looking into, half done, to another whose
        # type has it too; that one's decoder then follows a null pointer.
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder
