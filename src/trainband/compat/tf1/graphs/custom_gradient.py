"""Derivatives that a script defines: `tf.custom_gradient`, `tf.RegisterGradient` and `gradient_override_map`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainband.compat.tf1.graphs.graph import GRADIENTS, Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.region import Body, loop_variable, read_before

Derivative = Callable[[Sequence[Tensor]], Sequence[Any]]
"""From the derivatives by outputs to those by inputs; `None` is zero."""


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function whose derivative `f` returns as its second value, a function of the derivatives by its results.

    If that takes `variables`, it gets the variables that `f` reads, and returns their derivatives as a second list.
    """

    @functools.wraps(f)
    def called(*arguments: Any, **keywords: Any) -> Any:
        graph = get_default_graph()
        inputs = [convert(one) for one in flatten(arguments)]
        before = len(graph.operations)
        result, derivative = f(*pack_like(arguments, inputs), **keywords)
        outputs = [convert(one) for one in flatten(result)]
        reads = _reads(graph.operations[before:]) if "variables" in inspect.signature(derivative).parameters else []

        def backward(slopes: Sequence[Tensor]) -> list[Any]:
            if not reads:
                return flatten(derivative(*slopes))
            variables = list(dict.fromkeys(read.op.attributes["variable"] for read in reads))
            found, by_variables = derivative(*slopes, variables=variables)
            others = dict(zip(variables, flatten(by_variables), strict=True))
            # A variable may be read several times; one of them carries its derivative.
            return [*flatten(found), *(others.pop(read.op.attributes["variable"], None) for read in reads)]

        found = with_derivative([*inputs, *reads], outputs, backward)
        return pack_like(result, found)

    return called


def _reads(operations: Sequence[Operation]) -> list[Tensor]:
    inputs = [tensor for op in operations for tensor in op.inputs]
    return list(dict.fromkeys(t for t in inputs if "variable" in t.op.attributes and not t.op.writes))


class RegisterGradient:
    """A decorator that gives a derivative a name for `gradient_override_map`.

    It is a function of the operation and the derivatives by its outputs, and returns those by its inputs.
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError("op_type must be a string")
        self._op_type = op_type

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function.

        Raises:
          KeyError: the name is taken.
        """
        if self._op_type in GRADIENTS:
            raise KeyError(f"Registering two gradient with name '{self._op_type}'!")
        GRADIENTS[self._op_type] = functools.partial(_overridden, f)
        return f


def NotDifferentiable(op_type: str) -> None:  # noqa: N802 - TensorFlow's name
    """Registers that there is no derivative."""
    RegisterGradient(op_type)(lambda op, *_: [None] * len(op.inputs))


def _overridden(f: Callable[..., Any], op: Operation) -> Operation:
    found = with_derivative(op.inputs, op.outputs, lambda slopes: flatten(f(op, *slopes)), op.type)
    return found[0].op if found else op


def with_derivative(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], derivative: Derivative, type_: str = "IdentityN"
) -> list[Tensor]:
    """Return the outputs as tensors whose derivatives by the inputs are those given.

    Raises:
      ValueError: there are not as many derivatives as inputs.
    """
    graph = get_default_graph()
    if not outputs:
        return []
    inside = Region(graph.region)
    with graph.recording(inside), graph.gradient_override_map(None):
        slopes = [loop_variable(one.dtype, one.shape) for one in outputs]
        given = list(derivative(slopes))
        if len(given) != len(inputs):
            raise ValueError(f"A derivative must return one tensor for each of {len(inputs)} inputs, got {len(given)}.")
        known = [(i, convert(one)) for i, one in enumerate(given) if one is not None]
    body = Body(inside, [one for _, one in known], slopes)
    early = read_before([body], [])
    function = body.function([*slopes, *body.captured])
    first, second = len(inputs), len(inputs) + len(outputs)

    def compute(frame: Frame, *values: Any) -> Any:
        @jax.custom_vjp
        def passed(*arrays: Any) -> Any:
            return list(arrays[first:second])

        def forward(*arrays: Any) -> Any:
            return passed(*arrays), arrays

        def backward(arrays: Sequence[Any], slopes: Sequence[Any]) -> Any:
            real = [
                jnp.zeros(array.shape, array.dtype) if slope.dtype == jax.dtypes.float0 else slope
                for array, slope in zip(arrays[first:second], slopes, strict=True)
            ]
            found, _ = function(frame.state, frame.keys, [*real, *arrays[second:]])
            by_input = {i: one for (i, _), one in zip(known, found, strict=True)}
            # None, unlike zeros, is not multiplied with what is infinite on the way to an input.
            return tuple(_cotangent(array, by_input.get(i)) for i, array in enumerate(arrays))

        passed.defvjp(forward, backward)
        return passed(*(jnp.asarray(value) for value in values))

    op = record(
        type_,
        compute,
        [*inputs, *outputs, *body.captured, *early.values()],
        count=len(outputs),
        dtypes=[one.dtype for one in outputs],
        shapes=[one.shape for one in outputs],
        stateful=True,
        attributes={"regions": (inside,), "pure": True},
        overridden=True,
    )
    return op.outputs


def _cotangent(array: Any, slope: Any) -> Any:
    if slope is None or not jnp.issubdtype(array.dtype, jnp.floating):
        return None
    return jnp.broadcast_to(slope, array.shape).astype(array.dtype)
