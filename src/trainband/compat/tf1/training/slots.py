"""Slots: variables that belong to others, such as a momentum or an average, and are named after them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from trainband.compat.ops import array
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations.recorder import recorded


def slot_of(primary: Any, first: Callable[[], Any], name: str, *, colocate: bool = True) -> Variable:
    """Makes a variable that belongs to a variable or tensor.

    TensorFlow makes it in the open variable scope, under the whole name of what it belongs to.

    Args:
      first: returns its first value.
      colocate: whether it lives where the other does.
    """
    graph = get_default_graph()
    outer = graph.variable_scope.name if graph.variable_scope is not None else ""
    own = f"{primary.op.name}/{name}"
    with ExitStack() as scopes:
        scopes.enter_context(graph.outside_scopes())
        scopes.enter_context(graph.control_dependencies(None))
        if colocate:
            scopes.enter_context(graph.device(None))
            scopes.enter_context(graph.device(primary.device))
        found = Variable(first, trainable=False, validate_shape=False, name=f"{outer}/{own}" if outer else own)
    info = getattr(primary, "save_slice", None)
    if info is not None and found.shape.as_list() == info.var_shape:  # it is cut like the variable
        whole = f"{info.full_name}/{name}"
        found.save_slice = replace(info, full_name=f"{outer}/{whole}" if outer else whole)
    return found


def create_slot(primary: Any, val: Any, name: str, colocate_with_primary: bool = True) -> Variable:
    """A slot that begins with a value."""
    return slot_of(primary, lambda: convert(val), name, colocate=colocate_with_primary)


def create_slot_with_initializer(
    primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, colocate_with_primary: bool = True
) -> Variable:
    """A slot that begins with what an initializer makes."""
    return slot_of(primary, lambda: initializer(shape, dtype), name, colocate=colocate_with_primary)


def create_zeros_slot(primary: Any, name: str, dtype: Any = None, colocate_with_primary: bool = True) -> Variable:
    """A slot that begins with zeros."""

    def zeros() -> Any:
        first = primary.initialized_value() if isinstance(primary, Variable) else convert(primary)
        return recorded(array.zeros)(_shape_of(first), dtype or primary.dtype)

    return slot_of(primary, zeros, name, colocate=colocate_with_primary)


def _shape_of(tensor: Any) -> Any:
    return tensor.shape if tensor.shape.is_fully_defined() else recorded(array.shape)(tensor)
