"""Whether a loss is a mean over the examples of the batch, found by following its traced program.

If it is, each device may compute the loss and gradient of its own part of the batch alone, and the mean over the
devices is that of the whole batch. The function is traced for two numbers of examples, and both programs are followed
together, equation by equation. Any difference is refused, except in the length of one axis, that of the examples,
and in the number that a sum over it is divided by. Every primitive without a rule is refused too: a wrong "no" costs
speed, a wrong "yes" would silently train something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.model.analysis.example_rules import result_of
from trainband.model.analysis.example_values import (
    Examples,
    Fixed,
    Mean,
    Numbers,
    Position,
    Result,
    Rule,
    Size,
    Step,
    Unknown,
    Value,
    differing,
    join,
    known_of_constants,
)
from trainband.model.analysis.walker import CALLS, IDENTITIES, walk
from trainband.model.variables import PyTree

SIZES = (101, 211)
"""Numbers of examples to trace for: primes, so that nothing else in a program has such a size by chance."""


def why_not_mean_of_examples(
    function: Callable[[Any, Any], Any],
    others: PyTree,
    batch: PyTree,
    sizes: tuple[int, int] = SIZES,
    *,
    surely: bool = False,
) -> str:
    """Returns why `function(others, batch)` may not be a mean over examples of a function of one example each.

    Empty if every output surely is `c(others) + k(others) * mean of f(others, example)`. Then the mean of its
    outputs, and of their gradients by `others`, over equal parts of the batch is that of the whole batch. Random
    numbers from a key in `others` are taken to be as good from another key: dropout's masks differ, but their
    distribution does not.

    Args:
      function: returns a pytree of scalars, such as the loss and metrics; traceable for any number of examples.
      others: pytree of arrays or `jax.ShapeDtypeStruct`s, such as the params and a random key.
      batch: pytree of arrays or `jax.ShapeDtypeStruct`s with the examples along their first axes; a scalar counts
        as one of the others.
      sizes: the two numbers of examples to compare, such as a part's and the whole batch's. A branch in Python on
        the number of examples is seen only if the two take different branches.
      surely: returns a reason only if it surely is not a mean, one to warn of; empty also if that is unknown.
    """
    programs = _traced(function, others, batch, sizes)
    if isinstance(programs, str):
        return "" if surely else programs
    inputs: list[Value] = [Fixed() for _ in jax.tree.leaves(others)]
    inputs += [Examples(0) if jnp.ndim(leaf) else Fixed() for leaf in jax.tree.leaves(batch)]
    for value in walk(_MeanOverExamples(sizes), programs, inputs):
        match value:
            case Fixed() | Mean(power=0):
                pass
            case Mean():
                return "sums over the batch are not divided by the number of examples"
            case Size():
                return "an output depends on the number of examples"
            case Unknown(certain=False) if surely:
                pass
            case Unknown(reason=reason):
                return reason
            case _:
                return "an output has the examples along an axis"
    return ""


def _traced(
    function: Callable[[Any, Any], Any], others: PyTree, batch: PyTree, sizes: tuple[int, int]
) -> list[Any] | str:
    """Returns the program for each number of examples, or why there is none to follow."""
    counts = {jnp.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if jnp.ndim(leaf)}
    if len(counts) != 1:
        return "the batch has no array" if not counts else "the batch's arrays differ in length"
    if sizes[0] == sizes[1] or min(sizes) < 2:
        return f"sizes must be two different numbers of examples, 2 or more, got {sizes[0]} and {sizes[1]}"
    programs = []
    for size in sizes:
        part = jax.tree.map(lambda leaf, size=size: _of_length(leaf, size), batch)
        try:
            programs.append(jax.make_jaxpr(function)(others, part))
        except Exception as exc:  # whatever the user's function raises
            return f"it cannot be traced for {size} examples: {(str(exc) or repr(exc)).splitlines()[0]}"
    if any(program.effects for program in programs):
        return "it has side effects"
    return programs


def _of_length(leaf: Any, size: int) -> Any:
    shape = jnp.shape(leaf)
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return jax.ShapeDtypeStruct((size, *shape[1:]), dtype) if shape else leaf


def _checked(value: Value, variables: Sequence[Any], sizes: tuple[int, int]) -> Value:
    """Checks a rule's result against the shapes of both programs' variables."""
    shapes = [getattr(variable.aval, "shape", None) for variable in variables]
    first, second = shapes
    if first is None or second is None or len(first) != len(second):
        return Unknown("a value's number of axes changes with the number of examples")
    if variables[0].aval.dtype != variables[1].aval.dtype:
        return Unknown("a value's dtype changes with the number of examples")
    axes = differing(first, second)
    match value:
        case Fixed() | Mean() if axes:
            return Unknown("a mean over the batch, or something else, is spread over the examples")
        case Examples() | Position():
            factor = value.outer * value.inner if isinstance(value, Examples) else 1
            long = [factor * size for size in sizes]
            if axes != [value.axis] or [first[value.axis], second[value.axis]] != long:
                return Unknown("the axis of the examples is mixed with others, paired with itself or cut")
    return value


@dataclass(frozen=True, slots=True)
class _MeanOverExamples:
    """A `Domain`: whether a value depends on one example, on the mean over all, or on none.

    Attributes:
      sizes: the numbers of examples of the two programs.
      derivatives: whether to follow derivatives by custom_jvp.
    """

    sizes: tuple[int, int]
    derivatives: bool = True

    def constant(self, copies: Sequence[Any]) -> Value:
        first, second = copies
        return known_of_constants(first, second, self.sizes)

    def checked(self, value: Value, copies: Sequence[Any]) -> Value:
        return _checked(value, copies, self.sizes)

    def unknown(self, reason: str) -> Value:  # noqa: ARG002 - always the same
        return Unknown("the program changes with the number of examples")

    def outputs(self, copies: Sequence[Any], inputs: list[Value]) -> list[Value]:
        first, second = copies
        try:
            result = self._result(Step((first, second), self.sizes, self.derivatives), inputs)
        except (AttributeError, IndexError, KeyError):  # params of another version of jax
            result = f"the primitive {first.primitive.name} has unknown params"
        if isinstance(result, str):
            result = Unknown(result)
        return result if isinstance(result, list) else [result] * len(first.outvars)

    def _result(self, step: Step, inputs: list[Value]) -> Result:
        folded = _folded(step, inputs)
        if folded is not None:
            return folded
        follow = _CONTROL.get(step.name)
        return follow(step, inputs) if follow is not None else result_of(step, inputs)


def _folded(step: Step, inputs: list[Value]) -> Value | None:
    """Computes known numbers for both programs; returns `None` for anything else."""
    pairs = [
        value.numbers for value in inputs if isinstance(value, (Fixed, Size, Numbers)) and value.numbers is not None
    ]
    if step.name not in _FOLDED or not pairs or len(pairs) != len(inputs):
        return None
    found = []
    with jax.ensure_compile_time_eval():
        for which, equation in enumerate(step.equations):
            kinds = [variable.aval.dtype for variable in equation.invars]
            numbers = [jax.device_put(np.asarray(pair[which], kind)) for pair, kind in zip(pairs, kinds, strict=True)]
            found.append(np.asarray(equation.primitive.bind(*numbers, **equation.params))[()])
    return known_of_constants(found[0], found[1], step.sizes)


def _run_of(step: Step, programs: tuple[Any, Any], inputs: Sequence[Value]) -> list[Value]:
    """Returns what is known of the outputs of an equation's programs."""
    return walk(_MeanOverExamples(step.sizes, step.derivatives), programs, inputs)


# Control flow: any inputs are allowed.


def _call(step: Step, inputs: list[Value]) -> Result:
    return _run_of(step, step.pair("jaxpr"), inputs)


def _passed(step: Step, inputs: list[Value]) -> Result:
    return list(inputs) if step.same() else f"{step.name} changes with the number of examples"


def _custom_jvp(step: Step, inputs: list[Value]) -> Result:
    """Follows the derivative as well as the value, since it is the user's own."""
    values = _run_of(step, step.pair("call_jaxpr"), inputs)
    if not step.derivatives:
        return values
    try:
        first, second = (_with_tangents(equation) for equation in step.equations)
    except Exception as exc:  # whatever the user's function raises
        return f"a derivative by custom_jvp cannot be traced: {(str(exc) or repr(exc)).splitlines()[0]}"
    moving = [v for v, variable in zip(inputs, step.equations[0].invars, strict=True) if _moves(variable)]
    tangents: list[Value] = [Fixed() if isinstance(v, (Fixed, Size)) else v for v in moving]
    followed = walk(_MeanOverExamples(step.sizes, derivatives=False), (first, second), [*inputs, *tangents])
    for value, tangent, variable in zip(values, followed[len(values) :], step.equations[0].outvars, strict=True):
        if not _moves(variable) or isinstance(value, Unknown):
            continue
        if not isinstance(tangent, Fixed) and not (type(tangent) is type(value) and join(tangent, value) == value):
            why = tangent.reason if isinstance(tangent, Unknown) else "it mixes the examples"
            return f"a derivative by custom_jvp: {why}"
    return values


def _moves(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.inexact))


def _with_tangents(equation: Any) -> Any:
    """Returns the program of an equation's outputs and their tangents."""
    kinds = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in equation.invars]
    moving = [i for i, variable in enumerate(equation.invars) if _moves(variable)]

    def both(primals: list[Any], tangents: list[Any]) -> Any:
        def call(*moved: Any) -> Any:
            arguments = list(primals)
            for i, value in zip(moving, moved, strict=True):
                arguments[i] = value
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # jax before 0.10 has both
            return equation.primitive.bind(*functions, *arguments, **params)

        return jax.jvp(call, [primals[i] for i in moving], tangents)

    return jax.make_jaxpr(both)(kinds, [kinds[i] for i in moving])


def _custom_vjp(step: Step, inputs: list[Value]) -> Result:  # noqa: ARG001 - the form of a rule
    return f"its gradient is written by hand ({step.name})"


def _forgotten(values: Sequence[Value]) -> list[Value]:
    """Drops numbers: a loop changes them."""
    return [Fixed(value.constant) if isinstance(value, Fixed) else value for value in values]


def _shifted(value: Value, by: int) -> Value:
    """Removes a loop's axis from the front of a value, or adds it."""
    if isinstance(value, (Examples, Position)):
        axis = value.axis + by
        return replace(value, axis=axis) if axis >= 0 else Unknown("scan over the batch")
    return value


def _loop_sizes(step: Step, count: int) -> tuple[int, int]:
    """Returns how many of a scan's `count` inputs are constants of the loop, and how many are carried."""
    if "ft_in" not in step.params:  # JAX before 0.12
        return step.params["num_consts"], step.params["num_carry"]
    consts, carried, _rows = (len(list(group)) for group in step.params["ft_in"].update(range(count)).unpack())
    return consts, carried


def _scan(step: Step, inputs: list[Value]) -> Result:
    consts, carried = _loop_sizes(step, len(inputs))
    if not step.same("jaxpr"):
        return "scan changes with the number of examples"
    fixed = inputs[:consts]
    carry, rows = _forgotten(inputs[consts:][:carried]), _forgotten(inputs[consts + carried :])
    for _ in range(2 * len(carry) + 2):
        after = _run_of(step, step.pair("jaxpr"), [*fixed, *carry, *(_shifted(row, -1) for row in rows)])
        joined = [join(a, b) for a, b in zip(carry, after, strict=False)]
        if joined == carry:
            return [*carry, *_forgotten([_shifted(value, 1) for value in after[carried:]])]
        carry = joined
    return "scan did not reach a fixed point"


def _cond(step: Step, inputs: list[Value]) -> Result:
    if not isinstance(inputs[0], Fixed):
        return "cond on the batch"
    pairs = list(zip(*step.pair("branches"), strict=True))
    results = [_run_of(step, (one, two), inputs[1:]) for one, two in pairs]
    joined = results[0]
    for result in results[1:]:
        joined = [join(a, b) for a, b in zip(joined, result, strict=True)]
    return _forgotten(joined)


_FOLDED = frozenset(
    "add and convert_element_type div eq ge gt le lt max min mul ne neg not or reduce_prod reduce_sum reshape select_n "
    "squeeze sub".split()
)
"""Primitives computed if their inputs are known numbers: Keras gets a batch's size from its shape this way."""

_CONTROL: dict[str, Rule] = {
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(IDENTITIES, _passed),
    **dict.fromkeys("custom_lin custom_vjp_call custom_vmap_call linear_call".split(), _custom_vjp),
    "cond": _cond,
    "custom_jvp_call": _custom_jvp,
    "scan": _scan,
}
