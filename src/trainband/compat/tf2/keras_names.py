"""What is in `tf.keras`: modules and names of Keras, found by their paths."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trainband.errors import ModelError

ALIASES = {
    "tf.losses": "tf.keras.losses",
    "tf.metrics": "tf.keras.metrics",
    "tf.optimizers": "tf.keras.optimizers",
    "tf.initializers": "tf.keras.initializers",
}
"""Namespaces of TensorFlow 2 that are Keras's."""


def keras_module() -> Any:
    """`tf.keras`.

    Raises:
      ModelError: Keras is not installed, or computes with something else.
    """
    from trainband.compat.tf2.keras.overlay import keras_module as module

    return module()


def is_keras(path: str) -> bool:
    """Whether a path is one of Keras's: `tf.keras.layers`."""
    return path == "tf.keras" or path.startswith("tf.keras.")


def known() -> bool:
    """Whether Keras can be asked what it has."""
    try:
        keras_module()
    except ModelError:
        return False
    return True


def at(path: str) -> Any:
    """What a path such as `tf.keras.layers.Dense` leads to.

    Raises:
      AttributeError: it leads to nothing.
    """
    value = keras_module()
    for part in path.split(".")[2:]:
        value = getattr(value, part)
    return value


def module_at(path: str) -> ModuleType | None:
    """The module that a path leads to; `None` if it leads to none."""
    try:
        value = at(path)
    except AttributeError:
        return None
    return value if isinstance(value, ModuleType) else None


def names_at(path: str) -> list[str]:
    """All names of a module of Keras's."""
    module = module_at(path)
    return [] if module is None else [name for name in dir(module) if not name.startswith("_")]
