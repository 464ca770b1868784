"""Functions of TensorFlow's own modules that scripts call although they were never public."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainband.compat.ops import array
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import control_dependencies
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded

_PRINT_DEPRECATION_WARNINGS = True
"""A switch of `tensorflow.python.util.deprecation` that scripts set; here nothing reads it."""

_USE_C_API = True
"""A switch of `tensorflow.python.framework.ops` that scripts set; here nothing reads it."""


def convert_n_to_tensor(values: Sequence[Any], dtype: Any = None, name: str | None = None) -> list[Any]:
    """Convert several values to tensors.

    Raises:
      TypeError: it is no sequence.
    """
    if not isinstance(values, Sequence):
        raise TypeError("values must be a list.")
    names = [None if name is None else f"{name}_{i}" for i in range(len(values))]
    return [
        convert(one, None if dtype is None else as_dtype(dtype), label)
        for one, label in zip(values, names, strict=True)
    ]


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any, name: str | None = None) -> Any:
    """A tensor that has its value after some operations have run."""
    with control_dependencies(list(dependencies)):
        return recorded(array.identity)(output_tensor, name=name)


def add_to_collections(names: Any, value: Any) -> None:
    """Put something into several collections."""
    for name in [names] if isinstance(names, str) else names:
        get_default_graph().add_to_collection(name, value)


def init_scope() -> AbstractContextManager[None]:
    """Change nothing: there is no function that is being traced."""
    return nullcontext()


def is_resource_variable(var: Any) -> bool:
    """False: there is one kind of variable."""
    del var
    return False


def shared_resources() -> list[Any]:
    """Nothing: tables are in a collection of their own, and other resources need no initializer."""
    return []


def initialize_resources(resource_list: Sequence[Any], name: str = "init") -> Any:
    """An operation that initialises resources."""
    return group(*(one.initializer for one in resource_list), name=name)
