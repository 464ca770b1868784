"""Looking up the names of `tf` and of its namespaces."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from trainband.compat.missing import missing_name
from trainband.compat.ops.table import TABLE
from trainband.compat.space import Namespace
from trainband.compat.tf1.modules import look_up
from trainband.compat.tf1.names import OPS
from trainband.compat.tf2.eager import operators as operators  # tensors get Python's operators
from trainband.compat.tf2.eager.execute import function_of
from trainband.compat.tf2.keras_names import at, is_keras, keras_module
from trainband.compat.tf2.modules import child, everything, locate, names_of

_PACKAGE = "trainband.compat.tf2"
_FILES = "trainband.compat.tf2.eager"
_known: dict[str, ModuleType] = {}


def find(space: str, name: str) -> Any:
    """Look up a name of a namespace, or of a module of TensorFlow's.

    Raises:
      MissingName: trainband lacks it.
    """
    if space == "tf" and name == "keras":
        return keras_module()
    if is_keras(space):
        return getattr(at(space), name)
    inner = child(space, name)
    if inner is not None:
        return namespace(inner)
    found = locate(space, name)
    if found is None:
        if name.startswith("_"):  # asked for by tools, which try each object; looking for similar names takes long
            raise AttributeError(name)
        bare = f"{space}.{name}".replace("tf.compat.v1.", "tf.", 1)
        raise missing_name(space, name, everything(), 2, 1 if look_up(bare) is None else None)
    file, own = found
    if file == OPS:
        return function_of(TABLE[own])
    return getattr(import_module(f"trainband.compat{file}" if file.startswith(".") else f"{_FILES}.{file}"), own)


def namespace(space: str) -> ModuleType:
    """The module of a namespace."""
    if space == "tf":
        return import_module(_PACKAGE)
    if is_keras(space):
        found: ModuleType = at(space)
        return found
    if space not in _known:
        _known[space] = Namespace(space, 2, find, names_of)
    return _known[space]
