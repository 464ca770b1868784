"""Message classes of protocol buffers from a short list of their fields.

They are protobuf's own, in a pool of trainband's, so that they get along with the same messages of an installed
TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_PACKAGE = "tensorflow"
_BESIDE = "tensorboardX"


def messages(
    file: str, schema: str, enums: Mapping[str, str] | None = None, *, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Make message classes, by name.

    Args:
      file: a name of its own for the group.
      schema: a message a line, `Feature: BytesList bytes_list=1 int64* value=2`. A type is protobuf's, or the name of a
        message or enumeration; `*` repeats it, `{}` makes a map from strings to it, and `kind.bytes_list=1` puts a
        field into the choice `kind`. `Outer.Inner` is a message inside of another that comes before it. A second line
        of a name goes on with it.
      enums: enumerations by name, `NAME=0 OTHER=1`.
      beside: files of tensorboardX's, whose messages these may contain. They are then in protobuf's own pool.
    """
    pool, package = (descriptor_pool.Default(), "trainband") if beside else (_POOL, _PACKAGE)
    described = descriptor_pb2.FileDescriptorProto(name=f"trainband/{file}.proto", package=package, syntax="proto3")
    described.dependency.extend(f"{_BESIDE}/proto/{one}.proto" for one in beside)
    lines = [line.partition(":") for line in filter(None, map(str.strip, schema.splitlines()))]
    types = _Types(package, {name for name, _, _ in lines}, set(enums or {}))
    made: dict[str, Any] = {}
    for name, _, fields in lines:
        outer, _, inner = name.rpartition(".")
        if name not in made:
            made[name] = made[outer].nested_type.add(name=inner) if outer else described.message_type.add(name=inner)
        _describe(made[name], name, fields.split(), types)
    for name, values in (enums or {}).items():
        outer, _, inner = name.rpartition(".")
        enum = (made[outer] if outer else described).enum_type.add(name=inner)
        for label, number in (word.split("=") for word in values.split()):
            enum.value.add(name=label, number=int(number))
    pool.Add(described) if pool is _POOL else pool.AddSerializedFile(described.SerializeToString())
    return {
        one.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{one.name}"))
        for one in described.message_type
    }


@dataclass(frozen=True, slots=True)
class _Types:
    """Where the types of a group are: its messages and enumerations are in its package, others beside it."""

    package: str
    messages: set[str]
    enums: set[str]

    def set(self, field: Any, type_: str) -> None:
        """Gives a field its type."""
        simple = f"TYPE_{type_.upper()}"
        if type_.islower() and hasattr(field, simple):
            field.type = getattr(field, simple)
            return
        field.type = field.TYPE_ENUM if type_ in self.enums or type_ == "DataType" else field.TYPE_MESSAGE
        known = type_ in self.enums or type_ in self.messages or type_.endswith("Entry")
        field.type_name = f".{self.package if known else _BESIDE}.{type_}"


def _describe(message: Any, path: str, words: list[str], types: _Types) -> None:
    for type_, word in zip(words[::2], words[1::2], strict=True):
        name, _, number = word.partition("=")
        choice, _, name = name.rpartition(".")
        field = message.field.add(name=name, number=int(number), label="LABEL_OPTIONAL")
        if type_.endswith("{}"):
            entry = f"{name.title().replace('_', '')}Entry"
            pair = message.nested_type.add(name=entry)
            pair.options.map_entry = True
            _describe(pair, entry, ["string", "key=1", type_[:-2], "value=2"], types)
            type_ = f"{path}.{entry}*"
        if type_.endswith("*"):
            field.label = field.LABEL_REPEATED
        types.set(field, type_.rstrip("*"))
        if choice:
            choices = [one.name for one in message.oneof_decl]
            if choice not in choices:
                choices.append(choice)
                message.oneof_decl.add(name=choice)
            field.oneof_index = choices.index(choice)
