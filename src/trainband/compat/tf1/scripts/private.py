"""Functions of TensorFlow's own modules that scripts call although they were never public."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trainband.compat.ops import array
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import control_dependencies
from trainband.compat.tf1.operations.recorder import recorded

_PRINT_DEPRECATION_WARNINGS = True
"""A switch of `tensorflow.python.util.deprecation` that scripts set; here nothing reads it."""


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


def convert_n_to_tensor(values: Sequence[Any], dtype: Any = None, name: str | None = None) -> list[Tensor]:
    """Convert several values to tensors."""
    kind = None if dtype is None else as_dtype(dtype)
    return [convert(one, kind, None if name is None else f"{name}_{i}") for i, one in enumerate(values)]
