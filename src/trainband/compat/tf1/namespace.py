"""Looking up the names of `tf` and of its namespaces."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from trainband.compat.missing import missing_name
from trainband.compat.ops.table import TABLE
from trainband.compat.space import Namespace
from trainband.compat.tf1.modules import child, locate, names_of
from trainband.compat.tf1.names import OPS, everything
from trainband.compat.tf1.operations import operators as operators  # tensors get Python's operators
from trainband.compat.tf1.operations.recorder import recorder

_PACKAGE = "trainband.compat.tf1"
_known: dict[str, ModuleType] = {}


def find(space: str, name: str) -> Any:
    """Look up a name of a namespace, or of a module of TensorFlow's.

    Raises:
      MissingName: trainband lacks it.
    """
    inner = child(space, name)
    if inner is not None:
        return namespace(inner)
    found = locate(space, name)
    if found is None:
        if name.startswith("_"):  # asked for by tools, which try each object; looking for similar names takes long
            raise AttributeError(name)
        raise missing_name(space, name, everything())
    file, own = found
    if file == OPS:
        return recorder(TABLE[own])
    return getattr(import_module(f"trainband.compat{file}" if file.startswith(".") else f"{_PACKAGE}.{file}"), own)


def namespace(space: str) -> ModuleType:
    """The module of a namespace."""
    if space == "tf":
        return import_module(_PACKAGE)
    if space not in _known:
        _known[space] = Namespace(space, 1, find, names_of)
    return _known[space]
