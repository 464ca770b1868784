"""The faces: the front ends for TensorFlow 1 and 2, as whatever works with both sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from trainband.compat.missing import describe


@dataclass(frozen=True, slots=True)
class Face:
    """A front end.

    Attributes:
      number: the version of TensorFlow.
      package: the module that scripts may import themselves.
      spaces_of: the namespaces that stand for a module such as `tf.python.ops.math_ops`; `None` if it is not there.
      child: the module or namespace of a name within another; `None` if it is not one.
      locate: the place of a name of a module; `None` if it is not there.
      look_up: the first part of a dotted name that is not there, as far as it; `None` if all is.
      everything: all names, as `tf.nn.relu`.
      find: the value of a name of a namespace.
      module: the module of a namespace.
    """

    number: int
    package: str
    spaces_of: Callable[[str], tuple[str, ...] | None]
    child: Callable[[str, str], str | None]
    locate: Callable[[str, str], tuple[str, str] | None]
    look_up: Callable[[str], str | None]
    everything: Callable[[], list[str]]
    find: Callable[[str, str], Any]
    module: Callable[[str], ModuleType]

    def describe(self, name: str) -> str:
        """Say that a name is missing, which names come closest, and whether the other face has it."""
        other = face_of(3 - self.number)
        is_there = other.look_up(name.replace("tf.compat.v1.", "tf.", 1)) is None
        return describe(name, self.everything(), self.number, other.number if is_there else None)


@cache
def face_of(number: int) -> Face:
    """The front end for a version of TensorFlow.

    Raises:
      ValueError: it is neither 1 nor 2.
    """
    if number == 1:
        from trainband.compat.tf1.modules import child, locate, look_up, spaces_of
        from trainband.compat.tf1.names import everything
        from trainband.compat.tf1.namespace import find, namespace

        return Face(1, "trainband.compat.tf1", spaces_of, child, locate, look_up, everything, find, namespace)
    if number == 2:
        return _second()
    raise ValueError(f"there are front ends for TensorFlow 1 and 2, not for {number}")


def _second() -> Face:
    from trainband.compat.tf2.modules import child, everything, locate, look_up, spaces_of
    from trainband.compat.tf2.namespace import find, namespace

    return Face(2, "trainband.compat.tf2", spaces_of, child, locate, look_up, everything, find, namespace)
