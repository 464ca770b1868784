"""Variables without a first value, as TensorFlow's own operations make them and use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops import array, indexing
from trainband.compat.ops.dtypes import as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.variable import Variable
from trainband.compat.tf1.operations import state
from trainband.compat.tf1.operations.control_flow import no_op
from trainband.compat.tf1.operations.recorder import recorded


def variable_op(
    shape: Any,
    dtype: Any,
    name: str = "Variable",
    set_shape: bool = True,
    container: str = "",
    shared_name: str = "",
) -> Tensor:
    """Record a variable that no initialiser gives a value; the result is what `tf.assign` takes."""
    del container
    graph = get_default_graph()
    key = f"/bare/{shared_name}/{as_dtype(dtype).name}"
    if shared_name and key in graph.shared:
        there: Tensor = graph.shared[key].handle
        return there
    sizes = TensorShape(shape) if set_shape else TensorShape(None)
    first = np.zeros([size or 0 for size in sizes.sizes or ()], as_dtype(dtype).numpy)
    made = Variable(first, trainable=False, collections=[], name=name, validate_shape=False, dtype=dtype, shape=sizes)
    if shared_name:
        graph.shared[key] = made
    return made.handle


def variable_op_v2(
    shape: Any, dtype: Any, name: str = "Variable", container: str = "", shared_name: str = ""
) -> Tensor:
    """Like `variable_op`."""
    return variable_op(shape, dtype, name, True, container, shared_name)


def var_handle_op(
    dtype: Any, shape: Any, container: str = "", shared_name: str = "", name: str | None = None
) -> Tensor:
    """Like `variable_op`, with the arguments in another order."""
    return variable_op(shape, dtype, name or "VarHandleOp", True, container, shared_name)


def read_variable_op(resource: Any, dtype: Any, name: str | None = None) -> Tensor:
    """The value of a variable when this is run.

    Raises:
      ValueError: it has another dtype.
    """
    variable, kind = state.variable_of(resource), as_dtype(dtype)
    if kind != variable.dtype:
        raise ValueError(f"Trying to read variable with wrong dtype. Expected {kind.name}, got {variable.dtype.name}")
    found: Tensor = recorded(array.identity)(variable.read_value(), name=name)
    return found


def assign_variable_op(resource: Any, value: Any, name: str | None = None) -> Operation:
    """Gives a variable a value."""
    return state.assign(resource, value, name=name).op


def assign_add_variable_op(resource: Any, value: Any, name: str | None = None) -> Operation:
    """Adds to a variable."""
    return state.assign_add(resource, value, name=name).op


def assign_sub_variable_op(resource: Any, value: Any, name: str | None = None) -> Operation:
    """Subtracts from a variable."""
    return state.assign_sub(resource, value, name=name).op


def var_is_initialized_op(resource: Any, name: str | None = None) -> Tensor:
    """Whether a variable has a value."""
    del name
    return state.is_variable_initialized(state.variable_of(resource))


def destroy_resource_op(resource: Any, ignore_lookup_error: bool = True, name: str | None = None) -> Operation:
    """Does nothing: a variable lives as long as its session."""
    del resource, ignore_lookup_error
    return no_op(name)


def resource_gather(
    resource: Any, indices: Any, dtype: Any = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """Rows of a variable."""
    del dtype, validate_indices
    found: Tensor = recorded(indexing.gather)(state.variable_of(resource).read_value(), indices, name=name)
    return found


def _changing(change: Callable[..., Tensor]) -> Callable[..., Operation]:
    def record_it(resource: Any, indices: Any, updates: Any, name: str | None = None) -> Operation:
        return change(resource, indices, updates, name=name).op

    record_it.__doc__ = change.__doc__
    return record_it


resource_scatter_add = _changing(state.scatter_add)
resource_scatter_sub = _changing(state.scatter_sub)
resource_scatter_mul = _changing(state.scatter_mul)
resource_scatter_div = _changing(state.scatter_div)
resource_scatter_min = _changing(state.scatter_min)
resource_scatter_max = _changing(state.scatter_max)
resource_scatter_update = _changing(state.scatter_update)
