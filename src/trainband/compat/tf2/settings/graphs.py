"""Names of graphs, which are not in the eager face: their errors say where they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from trainband.compat.tf2.eager.captured import is_tracing
from trainband.compat.tf2.eager.execute import TENSORS, convert
from trainband.compat.tf2.eager.tensor import Tensor

_log = logging.getLogger(__name__)


TensorLike = Tensor | np.ndarray[Any, Any] | int | float | bool | str | bytes | list[Any] | tuple[Any, ...]
"""What can become a tensor."""


def gradients(*_: Any, **__: Any) -> NoReturn:
    """Not here.

    Raises:
      RuntimeError: always.
    """
    raise RuntimeError("tf.gradients is not supported when eager execution is enabled. Use tf.GradientTape instead.")


hessians = gradients


class Graph:
    """A graph, which nothing is recorded in here.

    Raises:
      NotImplementedError: something is to be recorded in it.
    """

    building_function = False

    def as_default(self) -> NoReturn:
        """Not here.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError("Graphs are in the front end for TensorFlow 1: run the script with --tensorflow 1.")


class Operation:
    """What tensors of graphs come from: there are none here."""


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """The value as NumPy's, or `None` where it is traced."""
    del partial
    found = convert(tensor)
    return None if found.is_traced else found.numpy()


def is_symbolic_tensor(tensor: Any) -> bool:
    """Whether it is traced."""
    return isinstance(tensor, Tensor) and tensor.is_traced


def inside_function() -> bool:
    """Whether a function is being traced."""
    return is_tracing()


def timestamp(name: str | None = None) -> Tensor:
    """The seconds since 1970."""
    del name
    return Tensor(np.asarray(time.time(), np.float64))


def get_current_name_scope() -> str:
    """Nothing: names have no scopes here."""
    return ""


@contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """A scope that changes nothing; a line says so."""
    del variable_creator
    _log.warning("tf.variable_creator_scope changes nothing here: variables are made as they are written.")
    yield


def no_gradient(op_type: str) -> None:
    """Does nothing: there are no operations of other libraries."""
    del op_type


def load_library(library_location: str) -> NoReturn:
    """Not here.

    Raises:
      NotImplementedError: always.
    """
    raise NotImplementedError(f"{library_location}: trainband runs no operations that are written in C++.")


load_op_library = load_library


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> Any:
    """The shape that two shapes are stretched to."""
    from trainband.compat.tf2.eager.shapes import TensorShape

    both = [tuple(int(one or 0) for one in TensorShape(shape).as_list()) for shape in (shape_x, shape_y)]
    return TensorShape(np.broadcast_shapes(*both))


def type_spec_from_value(value: Any) -> Any:
    """The shape and dtype of a value."""
    from trainband.compat.tf2.eager.function import TensorSpec

    return value.element_spec if hasattr(value, "element_spec") else TensorSpec.from_tensor(convert(value))


def truediv(x: Any, y: Any, name: str | None = None) -> Tensor:
    """Quotients; of whole numbers, as floating-point ones."""
    del name
    left: Any = convert(x) if TENSORS.is_tensor(x) or not TENSORS.is_tensor(y) else convert(x, convert(y).dtype)
    found: Tensor = left / y
    return found


def to_code(entity: Any, *_: Any, **__: Any) -> str:
    """The source of a function: none is converted."""
    import inspect

    return inspect.getsource(getattr(entity, "python_function", entity))


def to_graph(entity: Any, *_: Any, **__: Any) -> Any:
    """The function itself: none is converted."""
    return getattr(entity, "python_function", entity)


def set_loop_options(**_: Any) -> None:
    """Changes nothing."""


def trace(*args: Any) -> None:
    """Print values while a function is traced."""
    print(*args)
