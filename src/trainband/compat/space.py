"""Namespace: `tf.nn` and the like as modules, whose names are loaded when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class Namespace(ModuleType):
    """A module whose names are defined elsewhere.

    Args:
      space: its name, such as `tf.nn`.
      version: of TensorFlow.
      find: gives the value of a name of it.
      names: gives all its names.
    """

    def __init__(
        self, space: str, version: int, find: Callable[[str, str], Any], names: Callable[[str], list[str]]
    ) -> None:
        super().__init__(space, f"TensorFlow {version}'s `{space}`, by trainband.")
        self.__path__: list[str] = []
        self._find = find
        self._names = names

    def __getattr__(self, name: str) -> Any:
        value = self._find(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return self._names(self.__name__)
