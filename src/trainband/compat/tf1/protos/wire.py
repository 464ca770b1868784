"""Message classes of protocol buffers from a short list of their fields.

They are protobuf's own, in a pool of trainband's, so that they get along with the same messages of an installed
TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_PACKAGE = "tensorflow"


def messages(file: str, schema: str, enums: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Make message classes, by name.

    Args:
      file: a name of its own for the group.
      schema: a message a line, `Feature: BytesList bytes_list=1 int64* value=2`. A type is protobuf's, or the name of a
        message or enumeration; `*` repeats it, `{}` makes a map from strings to it, and `kind.bytes_list=1` puts a
        field into the choice `kind`.
      enums: enumerations by name, `NAME=0 OTHER=1`.
    """
    described = descriptor_pb2.FileDescriptorProto(name=f"trainband/{file}.proto", package=_PACKAGE, syntax="proto3")
    for name, values in (enums or {}).items():
        enum = described.enum_type.add(name=name)
        for label, number in (word.split("=") for word in values.split()):
            enum.value.add(name=label, number=int(number))
    for line in filter(None, map(str.strip, schema.splitlines())):
        name, _, fields = line.partition(":")
        _describe(described.message_type.add(name=name), fields.split(), enums or {})
    _POOL.Add(described)
    return {
        one.name: message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{one.name}"))
        for one in described.message_type
    }


def _describe(message: Any, words: list[str], enums: Mapping[str, str]) -> None:
    choices: list[str] = []
    for type_, word in zip(words[::2], words[1::2], strict=True):
        name, _, number = word.partition("=")
        choice, _, name = name.rpartition(".")
        field = message.field.add(name=name, number=int(number), label="LABEL_OPTIONAL")
        if type_.endswith("{}"):
            entry = f"{name.title().replace('_', '')}Entry"
            pair = message.nested_type.add(name=entry)
            pair.options.map_entry = True
            _describe(pair, ["string", "key=1", type_[:-2], "value=2"], enums)
            type_ = f"{message.name}.{entry}*"
        if type_.endswith("*"):
            field.label = field.LABEL_REPEATED
        _set_type(field, type_.rstrip("*"), enums)
        if choice:
            if choice not in choices:
                choices.append(choice)
                message.oneof_decl.add(name=choice)
            field.oneof_index = choices.index(choice)


def _set_type(field: Any, type_: str, enums: Mapping[str, str]) -> None:
    simple = f"TYPE_{type_.upper()}"
    if type_.islower() and hasattr(field, simple):
        field.type = getattr(field, simple)
    else:
        field.type = field.TYPE_ENUM if type_ in enums else field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_}"
