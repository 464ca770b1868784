"""Functions with declared dtypes, and operations that take them: calls, branches and loops.

A call records the body in its place, so that a function may use tensors and variables from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import array, indexing
from trainband.compat.ops.dtypes import DType, as_dtype, bool_, int32
from trainband.compat.tf1.graphs.custom_gradient import custom_gradient
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.nest import flatten
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.operations.control_flow import cond as record_cond
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.gradients import gradients
from trainband.compat.tf1.operations.loops import while_loop
from trainband.compat.tf1.operations.recorder import recorded


class Defun:
    """A decorator: the function takes tensors of these dtypes.

    Args:
      func_name: its name; that of the Python function when left out.
      grad_func: a function of the inputs and the derivatives by the outputs, to the derivatives by the inputs.
    """

    def __init__(self, *input_types: Any, func_name: str | None = None, grad_func: Any = None, **_: Any) -> None:
        self._types = [as_dtype(one) for one in input_types]
        self._name, self._gradient = func_name, grad_func

    def __call__(self, function: Callable[..., Any]) -> DefinedFunction:
        """The function as one of tensors."""
        return DefinedFunction(function, self._types, self._name or function.__name__, self._gradient)


class DefinedFunction:
    """A function of tensors."""

    def __init__(self, function: Callable[..., Any], types: Sequence[DType], name: str, gradient: Any) -> None:
        self._function, self._gradient = function, gradient
        self.declared_input_types = list(types)
        """The dtypes of its inputs."""
        self.name = name
        """Its name."""

    def __call__(self, *inputs: Any, name: str | None = None, **_: Any) -> Any:
        """Record its body: the only output, a list of several, or an operation if there are none.

        Raises:
          ValueError: the inputs are not those that it takes.
        """
        found = self.outputs(inputs, name)
        return found[0] if len(found) == 1 else found or group(name=name)

    def outputs(self, inputs: Sequence[Any], name: str | None = None) -> list[Any]:
        """Record its body; its outputs."""
        if self.declared_input_types and len(inputs) != len(self.declared_input_types):
            raise ValueError(
                f"{self.name} takes {len(self.declared_input_types)} inputs, not {len(inputs)}, of the types "
                f"{[one.name for one in self.declared_input_types]}"
            )
        types: Sequence[DType | None] = self.declared_input_types or [None] * len(inputs)
        given = [convert(one, dtype) for one, dtype in zip(inputs, types, strict=True)]
        with get_default_graph().name_scope(name or self.name.lstrip("_")):
            given = [recorded(array.identity)(one) for one in given]
            if self._gradient is None:
                return self._body(given)
            return flatten(custom_gradient(self._with_gradient)(*given))

    def _body(self, given: Sequence[Tensor]) -> list[Tensor]:
        found = self._function(*given)
        return [] if found is None or isinstance(found, Operation) else [convert(one) for one in flatten(found)]

    def _with_gradient(self, *given: Tensor) -> tuple[Any, Callable[..., Any]]:
        found = self._body(given)
        return (found[0] if len(found) == 1 else found), lambda *given_back: self._gradient(*given, *given_back)


def _called(function: Any, inputs: Sequence[Any]) -> list[Tensor]:
    if isinstance(function, DefinedFunction):
        return function.outputs(inputs)
    found = function(*inputs)
    return [] if found is None else [convert(one) for one in flatten(found)]


def partitioned_call(args: Sequence[Any], f: Any, tout: Any = None, **_: Any) -> list[Tensor]:
    """Call a function; its outputs."""
    del tout
    return _called(f, args)


def remote_call(args: Sequence[Any], Tout: Any, f: Any, target: Any, name: str | None = None) -> list[Tensor]:  # noqa: N803
    """Call a function; it runs where everything else does."""
    del Tout, target, name
    return _called(f, args)


def If(cond: Any, inputs: Sequence[Any], then_branch: Any, else_branch: Any, name: str | None = None) -> list[Tensor]:  # noqa: N802 - TensorFlow's names
    """Call one of two functions: the first one if a number is not zero."""
    chosen, given = convert(cond), [convert(one) for one in inputs]
    found = record_cond(
        chosen if chosen.dtype == bool_ else chosen != 0,
        lambda: _called(then_branch, given),
        lambda: _called(else_branch, given),
        strict=True,
        name=name,
    )
    return list(found)


def While(input_: Sequence[Any], cond: Any, body: Any, name: str | None = None, hostmem: Any = None) -> list[Tensor]:  # noqa: N802
    """Call a function of its own outputs while another one gives true.

    Raises:
      InvalidArgumentError: they have other numbers of outputs.
    """
    del hostmem
    given = [convert(one) for one in input_]

    def holds(*values: Tensor) -> Any:
        found = _called(cond, values)
        if len(found) != 1:
            raise InvalidArgumentError(None, None, f"Expected a single scalar, got {len(found)} tensors.")
        return found[0] if found[0].dtype == bool_ else found[0] != 0

    def step(*values: Tensor) -> list[Tensor]:
        found = _called(body, values)
        if len(found) != len(given):
            raise InvalidArgumentError(
                None, None, f"While loop body returned {len(found)} arguments. Expected: {len(given)}"
            )
        return found

    return list(while_loop(holds, step, given, name=name, return_same_structure=True))


def For(  # noqa: N802
    start: Any,
    limit: Any,
    delta: Any,
    inputs: Sequence[Any],
    body: Any,
    name: str | None = None,
    hostmem: Any = None,
    rewrite_with_while: Any = None,
) -> list[Tensor]:
    """Call a function of a number and its own outputs, for each number of a range.

    Raises:
      InvalidArgumentError: the range is none, or the function has another number of outputs.
    """
    del hostmem, rewrite_with_while
    begin, end, step = (convert(one, int32) for one in (start, limit, delta))
    for what, one in (("start", begin), ("limit", end), ("delta", step)):
        if one.shape.ndims:
            raise InvalidArgumentError(None, None, f"{what} must be a scalar")
    values = [known_value(one) for one in (begin, end, step)]
    if all(one is not None for one in values):
        first, last, by = (int(np.asarray(one)) for one in values)
        if (first < last and by <= 0) or (first > last and by >= 0):
            raise InvalidArgumentError(None, None, f"Invalid start/limit/delta: {first}, {last}, {by}")
    given = [convert(one) for one in inputs]
    up = step > 0  # type: ignore[operator]

    def holds(i: Tensor, *_: Tensor) -> Any:
        return recorded(indexing.where)(up, i < end, i > end)  # type: ignore[operator]

    def call(i: Tensor, *some: Tensor) -> list[Any]:
        found = _called(body, [i, *some])
        if len(found) != len(given):
            raise InvalidArgumentError(
                None, None, f"For loop body returned {len(found)} arguments. Expected: {len(given)}"
            )
        return [i + step, *found]  # type: ignore[operator]

    return list(while_loop(holds, call, [begin, *given], name=name, return_same_structure=True))[1:]


def Gradient(inputs: Sequence[Any], f: Any, name: str | None = None) -> list[Any]:  # noqa: N802
    """The derivatives of a function's outputs, from its inputs and the derivatives by its outputs."""
    count = len(f.declared_input_types)
    given = [convert(one) for one in inputs]
    sources = [recorded(array.identity)(one) for one in given[:count]]
    return gradients(f.outputs(sources), sources, given[count:], name=name or "gradients")
