"""Operations on variables as functions, lists of variables, and what initialises them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.ops.dtypes import bool_, string
from trainband.compat.ops.indexing import (
    rows_added,
    rows_divided,
    rows_maximized,
    rows_minimized,
    rows_multiplied,
    rows_replaced,
    rows_subtracted,
)
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import record
from trainband.compat.tf1.graphs.variable import Variable, scatter, scatter_nd
from trainband.compat.tf1.operations.control_flow import group, no_op


def assign(
    ref: Any,
    value: Any,
    validate_shape: Any = None,  # noqa: ARG001
    use_locking: Any = None,  # noqa: ARG001
    name: str | None = None,
) -> Tensor:
    """Assign to a variable; the result is the new value."""
    return variable_of(ref).assign(value, name=name)  # type: ignore[no-any-return]


def assign_add(ref: Any, value: Any, use_locking: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """Adds to a variable; the result is the sum."""
    return variable_of(ref).assign_add(value, name=name)  # type: ignore[no-any-return]


def assign_sub(ref: Any, value: Any, use_locking: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """Subtract from a variable; the result is the difference."""
    return variable_of(ref).assign_sub(value, name=name)  # type: ignore[no-any-return]


def scatter_update(ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """Replaces rows of a variable."""
    return scatter("ScatterUpdate", variable_of(ref), indices, updates, rows_replaced, name)


def scatter_add(ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """Adds to rows of a variable."""
    return scatter("ScatterAdd", variable_of(ref), indices, updates, rows_added, name)


def scatter_sub(ref: Any, indices: Any, updates: Any, use_locking: Any = None, name: str | None = None) -> Tensor:  # noqa: ARG001
    """Subtract from rows of a variable."""
    return scatter("ScatterSub", variable_of(ref), indices, updates, rows_subtracted, name)


def _scattering(name: str, change: Callable[[Any, Any, Any], Any], what: str, *, by_place: bool) -> Callable[..., Any]:
    """The operation that changes rows of a variable, or its elements or slices `by_place`."""

    def record_it(
        ref: Any,
        indices: Any,
        updates: Any,
        use_locking: Any = None,  # noqa: ARG001
        name: str | None = None,
    ) -> Tensor:
        return (scatter_nd if by_place else scatter)(kind, variable_of(ref), indices, updates, change, name)

    kind = name.title().replace("_", "")
    record_it.__name__ = record_it.__qualname__ = name
    record_it.__doc__ = f"{what} of a variable."
    return record_it


scatter_mul = _scattering("scatter_mul", rows_multiplied, "Multiplies rows", by_place=False)
scatter_div = _scattering("scatter_div", rows_divided, "Divides rows", by_place=False)
scatter_max = _scattering("scatter_max", rows_maximized, "Takes the larger of new and old rows", by_place=False)
scatter_min = _scattering("scatter_min", rows_minimized, "Takes the smaller of new and old rows", by_place=False)
scatter_nd_update = _scattering("scatter_nd_update", rows_replaced, "Replaces places", by_place=True)
scatter_nd_add = _scattering("scatter_nd_add", rows_added, "Adds to places", by_place=True)
scatter_nd_sub = _scattering("scatter_nd_sub", rows_subtracted, "Subtracts from places", by_place=True)


def variable_of(ref: Any) -> Variable:
    """Return the variable that a value is or stands for.

    Raises:
      TypeError: it is none.
    """
    if isinstance(ref, Variable):
        return ref
    if isinstance(ref, Tensor):
        variable = ref.op.attributes.get("variable")
        if isinstance(variable, Variable):
            return variable
    raise TypeError(f"Expected a variable, got {ref!r}.")


def global_variables(scope: str | None = None) -> list[Any]:
    """The variables that all tasks share."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Any]:
    """The variables that each process has for itself."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """The variables that optimizers train."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Any]:
    """The variables of the model proper."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Any]:
    """The variables that have moving averages."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Sequence[Any], name: str = "init") -> Operation:
    """An operation that gives variables their first values."""
    return group(*(variable.initializer for variable in var_list), name=name) if var_list else no_op(name)


def global_variables_initializer() -> Operation:
    """An operation that gives all shared variables their first values."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that gives all local variables their first values."""
    return variables_initializer(local_variables())


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """An operation that sets the contents of all lookup tables."""
    return group(*get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS), name=name)


def _asked_of_session(type_: str, dtype: Any, shape: Any, variables: Sequence[Any], name: str | None) -> Tensor:
    """Record a tensor whose value the session supplies: only it knows which variables have values."""

    def compute() -> Any:
        raise RuntimeError(f"{type_} can be fetched, but operations cannot use it.")

    result: Tensor = record(
        type_, compute, name=name or type_, dtypes=[dtype], shapes=[shape], attributes={"asks": tuple(variables)}
    ).outputs[0]
    return result


def is_variable_initialized(variable: Any) -> Tensor:
    """Whether a variable has a value."""
    return _asked_of_session("IsVariableInitialized", bool_, [], [variable_of(variable)], None)


def report_uninitialized_variables(var_list: Any = None, name: str = "report_uninitialized_variables") -> Tensor:
    """The names of the variables that have no value."""
    wanted = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    return _asked_of_session("ReportUninitialized", string, [None], [variable_of(v) for v in wanted], name)


def assert_variables_initialized(var_list: Any = None) -> Operation | None:
    """An operation that fails where a variable has no value; `None` without variables."""
    listed = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    return group(*(one.read_value() for one in listed), name="assert_variables_initialized") if listed else None


def count_up_to(ref: Any, limit: int, name: str | None = None) -> Tensor:
    """Adds one to a variable; the result is what it was before. At the limit, a run raises `OutOfRangeError`."""
    return variable_of(ref).count_up_to(limit, name)
