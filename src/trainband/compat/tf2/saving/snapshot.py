"""Snapshot: the values of all variables in an object, and which object has which, to a file and back."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainband.compat.checkpoints import objects
from trainband.compat.checkpoints.files import checkpoint_exists, metadata_of, read_checkpoint, write_checkpoint
from trainband.compat.checkpoints.objects import SavedObject
from trainband.compat.tf1.graphs.errors import NotFoundError
from trainband.compat.tf2.eager import tracking
from trainband.compat.tf2.saving.trackable import (
    PythonState,
    children,
    is_layer,
    is_optimizer,
    is_variable,
    walk,
)

_log = logging.getLogger(__name__)
_STATE = ".ATTRIBUTES/py_state"


def write(root: Any, prefix: str) -> None:
    """Writes the variables in an object to a file."""
    values: dict[str, Any] = {}
    numbers: dict[int, int] = {}
    saved: list[SavedObject] = []
    found = list(walk(root))
    for path, value in found:
        numbers[id(value)] = len(saved)
        one = SavedObject()
        saved.append(one)
        if is_variable(value):
            one.key = _key(path, objects.VALUE)
            values[one.key] = np.asarray(value.numpy())
        elif isinstance(value, PythonState):
            one.key = _key(path, _STATE)
            values[one.key] = np.frombuffer(value.serialize().encode(), np.uint8)
    for (_, value), one in zip(found, saved, strict=True):
        for name, child in children(value):
            one.children.setdefault(name, numbers[id(child)])
    write_checkpoint(prefix, values, {objects.METADATA: objects.as_json(saved)})


def _key(path: str, kind: str) -> str:
    return f"{path}/{kind}" if path else kind


class Snapshot:
    """What a file has, to be given to the variables in an object, also to those that come later.

    Raises:
      NotFoundError: there is no such file.
    """

    def __init__(self, prefix: str) -> None:
        if not checkpoint_exists(prefix):
            raise NotFoundError(
                None,
                None,
                f"Error when restoring from checkpoint or SavedModel at {prefix}: Unsuccessful TensorSliceReader "
                f"constructor: Failed to find any matching files for {prefix}\nPlease double-check that the path is "
                "correct.",
            )
        self.prefix = prefix
        self.values = read_checkpoint(prefix)
        text = metadata_of(prefix).get(objects.METADATA)
        graph = self.values.pop(objects.KEY, None)
        if text is not None:
            self.saved = objects.of_json(text)
        elif graph is not None:
            self.saved = objects.of_message(graph[()])
        else:
            self.saved = objects.of_values(self.values)


class Restoration:
    """The giving of a snapshot to an object.

    Args:
      root: the object.
      snapshot: what it gets.
    """

    def __init__(self, root: Any, snapshot: Snapshot) -> None:
        self._root = root
        self._snapshot = snapshot
        self._given: dict[int, Any] = {}
        self._used: set[str] = set()
        self._wrapped: set[int] = set()
        self._is_looking = False
        tracking.WATCHERS.add(self)
        self.look_again()

    def look_again(self) -> None:
        """Gives values to variables that have none from here yet.

        Raises:
          ValueError: a variable has another shape than its value.
        """
        if self._is_looking:
            return
        self._is_looking = True
        try:
            for value, number in self._pairs():
                self._give(value, self._snapshot.saved[number].key)
                self._follow(value)
        finally:
            self._is_looking = False
        if not self.left():
            tracking.WATCHERS.discard(self)

    def _pairs(self) -> Iterator[tuple[Any, int]]:
        """Yield the objects, each with the number of the one that was saved in its place."""
        saved = self._snapshot.saved
        waiting: list[tuple[Any, int]] = [(self._root, 0)]
        seen = {(id(self._root), 0)}
        while waiting:
            value, number = waiting.pop(0)
            yield value, number
            for name, one in children(value):
                there = _place(saved, number, name)
                if there is not None and (id(one), there) not in seen:
                    seen.add((id(one), there))
                    waiting.append((one, there))

    def _give(self, value: Any, key: str | None) -> None:
        if key is None or key not in self._snapshot.values:
            return
        self._used.add(key)
        if id(value) in self._given:
            return
        saved = self._snapshot.values[key]
        if isinstance(value, PythonState):
            value.deserialize(bytes(saved).decode())
        elif is_variable(value):
            if tuple(value.shape) != saved.shape:
                raise ValueError(
                    f"Received incompatible tensor with shape {saved.shape} when attempting to restore variable with "
                    f"shape {tuple(value.shape)} and name {key}."
                )
            value.assign(saved.astype(getattr(value.dtype, "numpy", value.dtype)))
        else:
            return
        self._given[id(value)] = value

    def _follow(self, value: Any) -> None:
        """Looks again as soon as a layer or an optimizer of Keras's has made its variables."""
        if id(value) in self._wrapped or not (is_layer(value) or is_optimizer(value)) or getattr(value, "built", True):
            return
        self._wrapped.add(id(value))
        value.build = _then(value.build, tracking.changed)

    def left(self) -> list[str]:
        """The names in the file that nothing has taken."""
        return sorted(name for name in self._snapshot.values if name not in self._used)

    def without(self) -> list[str]:
        """The paths of variables that the file has no values for."""
        return [
            path
            for path, value in walk(self._root)
            if (is_variable(value) or isinstance(value, PythonState)) and id(value) not in self._given
        ]

    @property
    def count(self) -> int:
        """How many variables have got values."""
        return len(self._given)


def _then(build: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(build)  # Keras marks its own
    def call(*args: Any, **kwargs: Any) -> Any:
        found = build(*args, **kwargs)
        after()
        return found

    return call


def _place(saved: list[SavedObject], number: int, path: str) -> int | None:
    """The number of what was saved in an object by a name, or by several; `None` if there is nothing.

    The variables of an optimizer are `_variables/3` here. Keras 2 does not count the learning rate among them.
    """
    if path in saved[number].children:
        return saved[number].children[path]
    rate = saved[number].children.get("_learning_rate")
    at: int | None = number
    for name in path.split("/"):
        if at is None:
            return None
        inner = saved[at].children
        if path.startswith("_variables/") and name.isdigit() and rate is not None and inner.get("1", rate) != rate:
            name = {"0": "0", "1": ""}.get(name, str(int(name) - 1))
        at = inner.get(name)
    return at


def path_of(value: Any) -> str:
    """A path as text."""
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def directory_of(prefix: str) -> Path:
    """The directory of a checkpoint."""
    return Path(prefix).parent
