"""Namespace: `tf.nn` and the like as modules, whose names are loaded when they are first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from trainband.compat.missing import missing_name
from trainband.compat.ops.table import TABLE
from trainband.compat.tf1.names import OPS
from trainband.compat.tf2.eager import operators as operators  # tensors get Python's operators
from trainband.compat.tf2.eager.execute import function_of
from trainband.compat.tf2.names import NAMES

_PACKAGE = "trainband.compat.tf2"
_FILES = "trainband.compat.tf2.eager"
_known: dict[str, ModuleType] = {}


class Namespace(ModuleType):
    """A module whose names are defined elsewhere."""

    def __init__(self, space: str) -> None:
        super().__init__(space, f"TensorFlow 2's `{space}`, by trainband.")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = find(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted([*NAMES[self.__name__], *inside(self.__name__)])


def inside(space: str) -> dict[str, str]:
    """The namespaces within a namespace, by the last part of their names."""
    return {name.rpartition(".")[2]: name for name in NAMES if name.rpartition(".")[0] == space}


def find(space: str, name: str) -> Any:
    """Look up a name of a namespace.

    Raises:
      MissingName: trainband lacks it.
    """
    if space == "tf" and name == "keras":
        from trainband.compat.tf2.eager.keras_bridge import keras_module

        return keras_module()
    if name in inside(space):
        return namespace(f"{space}.{name}")
    found = NAMES[space].get(name)
    if found is None:
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing_name(space, name, [f"{one}.{own}" for one, names in NAMES.items() for own in names], 2)
    file, own = found
    if file == OPS:
        return function_of(TABLE[own])
    return getattr(import_module(f"trainband.compat{file}" if file.startswith(".") else f"{_FILES}.{file}"), own)


def namespace(space: str) -> ModuleType:
    """The module of a namespace."""
    if space == "tf":
        return import_module(_PACKAGE)
    if space not in _known:
        _known[space] = Namespace(space)
    return _known[space]
