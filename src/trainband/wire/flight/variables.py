"""The variables of a task as seen by any Flight client."""

from __future__ import annotations

import math
from typing import Any

import pyarrow.flight as flight

from trainband.errors import Refused
from trainband.wire.flight.columns import tensor_batches, tensor_schema
from trainband.wire.transport import Handler, Tensor

_LONGEST_NAME = 1024


def name_of(descriptor: Any) -> str:
    """Returns the variable that a client asks for.

    Raises:
      Refused: the client names none.
    """
    if descriptor.descriptor_type != flight.DescriptorType.PATH or not descriptor.path:
        raise Refused("name a variable by a descriptor path of one part, such as [hidden/kernel].")
    return _text(b"/".join(descriptor.path))


def info_of(handler: Handler, descriptor: Any, scheme: str) -> Any:
    """Returns the location and schema of the variable that a client asks for.

    Raises:
      Refused: there is no such variable.
    """
    name = name_of(descriptor)
    for tensor in handler.tensors():
        if tensor.name == name:
            return describe(tensor, scheme)
    raise Refused(f"there is no variable {name!r} here.")


def describe(tensor: Tensor, scheme: str) -> Any:
    """Describes a variable as a `FlightInfo`; `scheme`: of its addresses, `grpc+tcp` or `grpc+tls`."""
    schema = tensor_schema(tensor.name, tensor.shape, tensor.dtype)
    width = schema.field("values").type.value_type.bit_width // 8
    return flight.FlightInfo(
        schema,
        flight.FlightDescriptor.for_path(tensor.name),
        [
            flight.FlightEndpoint(tensor.name.encode(), [f"{scheme}://{address}"])
            for _first, _end, address in tensor.slices
        ],
        tensor.shape[0] if tensor.shape else 1,
        math.prod(tensor.shape) * width,
    )


def read(handler: Handler, ticket: bytes) -> Any:
    """Returns this task's rows of a variable, as a stream."""
    name = _text(ticket)
    first_row, values = handler.read(name)
    schema = tensor_schema(name, values.shape, str(values.dtype))
    schema = schema.with_metadata({**schema.metadata, b"trainband.first_row": str(first_row).encode()})
    return flight.GeneratorStream(schema, tensor_batches(schema, values))


def _text(name: bytes) -> str:
    if len(name) > _LONGEST_NAME:
        raise Refused(f"a variable's name has at most {_LONGEST_NAME} bytes, but this one has {len(name):,}.")
    return name.decode(errors="replace")
