"""The graph of objects that a checkpoint keeps beside its values: how variables are found by the names of attributes.

Our files have it as JSON, in the file's metadata. TensorFlow's have a message of it under a name of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from trainband.compat.tf1.protos.wire import messages

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""The name under which TensorFlow keeps it."""
METADATA = "objects"
"""The name in the metadata of our files."""
VALUE = ".ATTRIBUTES/VARIABLE_VALUE"
"""Suffix of a variable's path in its name."""

_MESSAGES = messages(
    "objects",
    """
    SavedChild: int32 node_id=1 string local_name=2
    SavedValue: string name=1 string full_name=2 string checkpoint_key=3
    SavedObject: SavedChild* children=1 SavedValue* attributes=2
    SavedObjects: SavedObject* nodes=1
    """,
)


@dataclass(slots=True)
class SavedObject:
    """An object that was saved.

    Attributes:
      children: the numbers of the objects in it, by name.
      key: the name of its value, if it is a variable.
    """

    children: dict[str, int] = field(default_factory=dict)
    key: str | None = None


def as_json(objects: list[SavedObject]) -> str:
    """The graph as text; the first object is the root."""
    return json.dumps([[one.children, one.key] for one in objects])


def of_json(text: str) -> list[SavedObject]:
    """The graph that is such a text."""
    return [SavedObject(children, key) for children, key in json.loads(text)]


def of_message(data: bytes) -> list[SavedObject]:
    """The graph that TensorFlow has written."""
    return [
        SavedObject(
            {child.local_name: child.node_id for child in node.children},
            next((one.checkpoint_key for one in node.attributes if one.name == "VARIABLE_VALUE"), None),
        )
        for node in _MESSAGES["SavedObjects"].FromString(data).nodes
    ]


def of_values(values: dict[str, Any]) -> list[SavedObject]:
    """A graph that follows from names such as `model/kernel` or `layer/kernel:0` alone."""
    objects = [SavedObject()]
    for key in values:
        at = 0
        for part in key.removesuffix(f"/{VALUE}").split("/"):
            if part not in objects[at].children:
                objects[at].children[part] = len(objects)
                objects.append(SavedObject())
            at = objects[at].children[part]
        objects[at].key = key
    return objects
