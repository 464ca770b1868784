"""What scripts of TensorFlow 2 still call by `tf.compat.v1`: switches, and a session that is only made."""

from __future__ import annotations

from typing import Any, NoReturn


def enable_eager_execution(*_: Any, **__: Any) -> None:
    """Changes nothing: operations give values."""


enable_v2_behavior = enable_v2_tensorshape = enable_resource_variables = enable_eager_execution


def disable_eager_execution(*_: Any, **__: Any) -> NoReturn:
    """Not here.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError("Graphs and sessions are in the front end for TensorFlow 1: run with --tensorflow 1.")


disable_v2_behavior = disable_eager_execution


class Session:
    """A session that scripts make for its `config`, which changes nothing."""

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        del target, graph, config

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Does nothing."""

    def run(self, *_: Any, **__: Any) -> NoReturn:
        """Not here.

        Raises:
          NotImplementedError: always.
        """
        disable_eager_execution()


InteractiveSession = Session
