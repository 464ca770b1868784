"""Namespace: `tf.nn` and the like as modules, whose names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from trainband.compat.missing import missing_name
from trainband.compat.ops.table import TABLE
from trainband.compat.tf1.modules import child, locate, names_of
from trainband.compat.tf1.names import OPS, everything
from trainband.compat.tf1.operations import operators as operators  # tensors get Python's operators
from trainband.compat.tf1.operations.recorder import recorder

_PACKAGE = "trainband.compat.tf1"
_known: dict[str, ModuleType] = {}


class Namespace(ModuleType):
    """A module whose names are defined elsewhere."""

    def __init__(self, space: str) -> None:
        super().__init__(space, f"TensorFlow 1's `{space}`, by trainband.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = find(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return names_of(self.__name__)


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
        if name.startswith("__"):
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
        _known[space] = Namespace(space)
    return _known[space]
