"""Examples that are written as JSON."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.strings import each
from trainband.compat.tf1.protos.example import Example


def decode_json_example(json_examples: Any, name: str | None = None) -> Tensor:
    """Examples as text of protocol buffers.

    Raises:
      InvalidArgumentError (in a run): it is not an example's JSON.
    """

    def decode(text: bytes) -> bytes:
        message = Example()
        try:
            json_format.Parse(text, message)
        except (json_format.ParseError, UnicodeDecodeError) as exc:
            raise InvalidArgumentError(None, None, f"Error while parsing JSON: {exc}") from exc
        return bytes(message.SerializeToString())

    found: Tensor = each("DecodeJSONExample", decode, [convert(json_examples, string)], name)
    return found
