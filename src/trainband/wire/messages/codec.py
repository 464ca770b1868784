"""Encoding of records: MessagePack with a checked schema, by msgspec. Never pickle, never code objects."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from trainband.errors import ProtocolError
from trainband.runtime.formatting import one_line
from trainband.wire.messages.fields import received

MOST_OF_A_NAME = 200
MOST_OF_A_REASON = 300
"""Characters: a reason may quote the received data."""

Record = TypeVar("Record")

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_building = threading.Lock()


def encode(record: msgspec.Struct) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes, kind: type[Record], sender: str) -> Record:
    """Decodes a record of `kind` from `sender`.

    Raises:
      ProtocolError: the bytes are not such a record; the message names the sender and the field.
    """
    record: Record = decode_any(data, kind, sender)
    return record


def decode_any(data: bytes, kind: Any, sender: str) -> Any:
    """Like `decode`; `kind` may also be a union of tagged records.

    Raises:
      ProtocolError: the bytes are not such a record; the message names the sender and the field.
    """
    decoder = _decoder(kind)
    try:
        return decoder.decode(data)
    # Not only msgspec's errors: text may not be UTF-8, nesting too deep, lengths larger than memory, and a record that
    # validates itself may raise anything.
    except Exception as exc:
        name = one_line(getattr(kind, "__name__", str(kind)), MOST_OF_A_NAME)
        why = one_line(str(exc), MOST_OF_A_REASON) or type(exc).__name__
        raise ProtocolError(
            f"{sender} sent an invalid {name} ({why}); check that both run the same version of trainband."
        ) from exc


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        # One thread at a time: msgspec 0.22 exposes a half-built type to another thread whose type contains it; the
        # resulting decoder then follows a null pointer.
        with _building:
            decoder = _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind, dec_hook=received))
    return decoder
