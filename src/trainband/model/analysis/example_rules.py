"""Rules of the primitives for values that are examples, a mean over them, their number or none of these.

A rule takes what is known of an equation's inputs, and returns what is known of its outputs or why it is refused.
Equations that call another program are followed by `mean_over_examples`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.model.analysis.example_values import (
    Examples,
    Fixed,
    Mean,
    Position,
    Result,
    Rule,
    Size,
    Step,
    Unknown,
    Value,
    differing,
    is_program,
)
from trainband.model.analysis.walker import ELEMENTWISE


def result_of(step: Step, inputs: list[Value]) -> Result:
    """Applies the first rule that fits the inputs."""
    if step.name == "select_n" and isinstance(inputs[0], Examples) and inputs[0].never:
        return inputs[1]
    unknown = next((value for value in inputs if isinstance(value, Unknown)), None)
    if unknown is not None:
        return unknown
    if all(isinstance(value, Fixed) for value in inputs):
        return _of_fixed(step, inputs)
    if any(isinstance(value, Size) for value in inputs):
        return _of_size(step, inputs)
    if any(isinstance(value, Mean) for value in inputs):
        return _of_mean(step, inputs)
    if any(isinstance(value, Position) for value in inputs):
        return _of_position(step, inputs)
    return _of_examples(step, inputs)


def _of_fixed(step: Step, inputs: list[Value]) -> Result:
    constant = all(isinstance(value, Fixed) and value.constant for value in inputs)
    axes = {i for e in zip(*(e.outvars for e in step.equations), strict=True) for i in _differing_of(e)}
    if step.name not in _RULES and step.name != "while" and any(map(is_program, step.params.values())):
        return f"the primitive {step.name} is not known"
    if not axes:
        return Fixed(constant) if step.same() else f"{step.name} changes with the number of examples"
    axis = min(axes)
    inner, rest = divmod(step.new_shapes()[0][axis], step.sizes[0])
    if rest or not step.same("shape"):
        return f"{step.name} makes values whose number depends on that of the examples"
    if step.name == "iota" and step.params["dimension"] == axis:
        return Position(axis)
    if step.name in ("broadcast_in_dim", "iota"):
        return Examples(axis, 1, inner, free=True)
    if step.name in ("random_bits", "random_split"):
        # With a key that is the same on every device, the numbers would repeat from device to device.
        if constant:
            return "random numbers for the examples come from a key in the function"
        return Examples(axis, 1, inner, free=True)
    return f"{step.name} makes values whose number depends on that of the examples"


def _differing_of(variables: tuple[Any, Any]) -> list[int]:
    first, second = (getattr(variable.aval, "shape", ()) for variable in variables)
    return differing(first, second) if len(first) == len(second) else [0]


def _of_size(step: Step, inputs: list[Value]) -> Result:
    """Allows only dividing by the number of examples, or multiplying by its inverse."""
    if step.name in ("broadcast_in_dim", "reshape", "squeeze"):
        return inputs[0]
    match step.name, inputs:
        case (("mul" | "div"), [(Examples() | Mean()) as value, Size(numbers=numbers)]):
            sign = 1 if step.name == "mul" else -1
        case "mul", [Size(numbers=numbers), (Examples() | Mean()) as value]:
            sign = 1
        case _:
            return f"{step.name} uses the number of examples"
    power = _power_of(numbers, step.sizes)
    if power is None or not step.floating:
        return f"{step.name} of the batch by something that depends on the number of examples, but is not it"
    return replace(value, power=value.power + sign * power)


def _power_of(numbers: tuple[Any, Any], sizes: tuple[int, int]) -> int | None:
    """Returns p if the numbers are proportional to size ** p: 1 or -1."""
    dtype = np.asarray(numbers[0]).dtype
    a, b = (float(number) for number in numbers)
    if not (math.isfinite(a) and math.isfinite(b) and a and b):
        return None
    if dtype.itemsize < 4:  # too coarse to tell a size from size + 1, unless an exact multiple
        multiples = [np.asarray(round(a / sizes[0]) * size).astype(dtype) for size in sizes]
        return 1 if [float(multiple) for multiple in multiples] == [a, b] else None
    tolerance = 1e-12 if dtype.itemsize == 8 or dtype.kind in "iu" else 5e-7
    return next((p for p in (1, -1) if abs(a / b / (sizes[0] / sizes[1]) ** p - 1) <= tolerance), None)


def _power(step: Step, inputs: list[Value]) -> int | None:
    """Returns the power of the outcome if the operation is linear in it."""
    powers = [value.power if isinstance(value, (Examples, Mean)) else 0 for value in inputs]
    if not any(powers):
        return 0
    if step.name in _PRODUCTS:
        return sum(powers)
    if step.name in _SUMS:
        added = {power for value, power in zip(inputs, powers, strict=True) if not _is_zero(value)}
        return added.pop() if len(added) == 1 else None
    return powers[0] if step.name in _LINEAR and not any(powers[1:]) else None


def _is_zero(value: Value) -> bool:
    return isinstance(value, Fixed) and value.numbers is not None and not any(map(bool, value.numbers))


def _of_mean(step: Step, inputs: list[Value]) -> Result:
    """Allows affine operations."""
    name = step.name
    if not all(isinstance(value, (Mean, Fixed)) for value in inputs):
        return Unknown(f"{name} brings a mean or sum over the batch back to the examples", certain=True)
    means = sum(isinstance(value, Mean) for value in inputs)
    if name in _PRODUCTS:
        fits = means == 1
    elif name in _LINEAR:
        fits = means == 1 and isinstance(inputs[0], Mean)
    elif name == "select_n":
        fits = isinstance(inputs[0], Fixed) and not any(isinstance(v, Mean) and v.power for v in inputs)
    else:
        fits = name in _SUMS
    if not fits:
        return Unknown(f"{name} of a mean or sum over the batch", certain=True)
    dtype = step.equations[0].invars[0].aval.dtype
    if name == "convert_element_type" and not step.floating and jnp.issubdtype(dtype, jnp.floating):
        return "a mean over the batch is rounded"
    if not step.floating and (name not in _OF_COUNTS or step.equations[0].outvars[0].aval.dtype.itemsize < 4):
        return f"{name} of a sum of integers over the batch"
    power = _power(step, inputs)
    if power is None:
        reason = "a sum over the batch, not divided by the number of examples, is added to something else"
        return Unknown(reason, certain=True)
    return Mean(power) if step.same() else f"{name} changes with the number of examples"


def _of_position(step: Step, inputs: list[Value]) -> Result:
    """Allows an example only to index itself: `x[jnp.arange(len(x)), labels]`."""
    name, first = step.name, inputs[0]
    refusal = f"{name} uses the examples' positions in the batch"
    if isinstance(first, Position) and first.column is None and name in _MOVES:
        dtype = step.equations[0].outvars[0].aval.dtype
        moved = _RULES[name](step, [Examples(first.axis)])
        fits = isinstance(moved, Examples) and step.same(*_MAY_DIFFER.get(name, ()))
        wide = jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize >= 4
        return Position(moved.axis) if isinstance(moved, Examples) and fits and wide else refusal
    match name, inputs:
        case "lt", [Position(column=None, axis=axis), Fixed(numbers=(a, b))] if a == b == 0:
            return Examples(axis, never=True)
        case "concatenate", _:
            spots = [i for i, value in enumerate(inputs) if isinstance(value, Position)]
            spot = inputs[spots[0]]
            last = len(step.shapes()[0]) - 1
            rest = {v.place for v in inputs if isinstance(v, Examples) and not v.power}
            if len(spots) != 1 or not isinstance(spot, Position) or spot.column is not None or not step.same():
                return refusal
            if step.params["dimension"] != last or spot.axis == last or rest != {(spot.axis, 1, 1)}:
                return refusal
            if len(inputs) != 1 + sum(isinstance(v, Examples) and not v.power for v in inputs):
                return refusal
            if step.shapes(spots[0])[0][last] != 1:
                return refusal
            return Position(spot.axis, sum(step.shapes(i)[0][last] for i in range(spots[0])))
        case "gather", [Examples(outer=1, inner=1, power=0) as operand, Position() as own]:
            numbers = step.params["dimension_numbers"]
            columns = step.shapes(1)[0][-1]
            if own.axis == len(step.shapes(1)[0]) - 1 or (own.column is None and columns != 1) or not step.same():
                return refusal
            itself = numbers.start_index_map[own.column or 0] == operand.axis
            if not itself or operand.axis not in numbers.collapsed_slice_dims:
                return refusal
            return Examples(_batch_axis(step, own.axis))
    return refusal


def _of_examples(step: Step, inputs: list[Value]) -> Result:
    name = step.name
    rule = _RULES.get(name)
    if rule is None:
        return f"the primitive {name} is not known"
    if not step.same(*_MAY_DIFFER.get(name, ())):
        return f"{name} changes with the number of examples"
    power = _power(step, inputs)
    if power is None or (not step.floating and any(v.power for v in inputs if isinstance(v, Examples))):
        return f"{name} of examples that were divided by their number"
    result = rule(step, inputs)
    if isinstance(result, (Examples, Mean)):
        return replace(result, power=result.power + power)
    return result


# Rules for examples and fixed values. `mean_over_examples` checks that the axis they return has the right length.


def _elementwise(step: Step, inputs: list[Value]) -> Result:
    along = [value for value in inputs if isinstance(value, Examples)]
    bound = {value.place for value in along if not value.free}
    if len({value.axis for value in along}) != 1 or len(bound) > 1:
        return f"{step.name} of examples along different axes"
    return Examples(*bound.pop()) if bound else Examples(*along[0].place, free=True)


def _moved(axis: Callable[[Step, int], int]) -> Rule:
    """Returns the rule of an operation on one value that moves the axis of the examples."""

    def rule(step: Step, inputs: list[Value]) -> Result:
        value = inputs[0]
        if not isinstance(value, Examples) or any(isinstance(v, Examples) for v in inputs[1:]):
            return f"{step.name} at positions that depend on an example"
        return Examples(axis(step, value.axis), value.outer, value.inner)

    return rule


def _unless(touched: Callable[[Step, int], bool]) -> Rule:
    """Returns the rule of an operation that treats all places along an axis alike, unless it touches that axis."""

    def rule(step: Step, inputs: list[Value]) -> Result:
        value = _elementwise(step, inputs)
        return f"{step.name} over the batch" if isinstance(value, Examples) and touched(step, value.axis) else value

    return rule


def _along(key: str) -> Rule:
    """Returns the rule of an operation along one axis."""
    return _unless(lambda step, axis: bool(step.params[key] == axis))


def _reshape(step: Step, inputs: list[Value]) -> Result:
    value, (old, _), (new, other) = inputs[0], step.shapes(), step.new_shapes()
    axes = differing(new, other)
    if not isinstance(value, Examples) or len(axes) != 1 or step.params.get("dimensions") is not None:
        return "reshape of the batch"
    before, after = math.prod(old[: value.axis]) * value.outer, value.inner * math.prod(old[value.axis + 1 :])
    lead, trail = math.prod(new[: axes[0]]), math.prod(new[axes[0] + 1 :])
    if not lead or not trail or before % lead or after % trail:
        return "reshape of the batch"
    return Examples(axes[0], before // lead, after // trail)


def _reduce(step: Step, inputs: list[Value]) -> Result:
    value, axes = _elementwise(step, inputs), step.params["axes"]
    if not isinstance(value, Examples):
        return value
    if value.axis not in axes:
        return replace(value, axis=value.axis - sum(axis < value.axis for axis in axes))
    wide = step.floating or step.equations[0].outvars[0].aval.dtype.itemsize >= 4
    return Mean(1) if step.name == "reduce_sum" and wide else f"{step.name} over the batch"


def _slice(step: Step, inputs: list[Value]) -> Result:
    value = _elementwise(step, inputs[:1])
    keys = ("start_indices", "limit_indices", "strides")
    if isinstance(value, Examples):
        if not step.same_but_along(value.axis, *keys):
            return "slice changes with the number of examples"
        for (start, limit, stride), shape in zip(zip(*map(step.pair, keys), strict=True), step.shapes(), strict=True):
            whole = start[value.axis] == 0 and limit[value.axis] == shape[value.axis]
            if not whole or (stride is not None and stride[value.axis] != 1):
                return "slice of the batch"
    return value


def _dynamic_slice(step: Step, inputs: list[Value]) -> Result:
    value = _elementwise(step, inputs[:1])
    if not isinstance(value, Examples) or not all(isinstance(v, Fixed) for v in inputs[1:]):
        return "dynamic_slice at positions that depend on an example"
    whole = [a[value.axis] == b[value.axis] for a, b in zip(step.pair("slice_sizes"), step.shapes(), strict=True)]
    fits = all(whole) and step.same_but_along(value.axis, "slice_sizes")
    return value if fits else "dynamic_slice of the batch"


def _dynamic_update_slice(step: Step, inputs: list[Value]) -> Result:
    value = _elementwise(step, inputs)
    if isinstance(value, Examples) and not all(isinstance(v, Examples) for v in inputs[:2]):
        return "dynamic_update_slice of the batch"
    return value if all(isinstance(v, Fixed) for v in inputs[2:]) else "dynamic_update_slice of the batch"


def _stack(step: Step, inputs: list[Value]) -> Result:
    value = _elementwise(step, inputs)
    return (
        replace(value, axis=value.axis + (value.axis >= step.params["axis"])) if isinstance(value, Examples) else value
    )


def _in_window(step: Step, axis: int) -> bool:
    keys = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    ones = all(step.params[key][axis] == 1 for key in keys)
    return not ones or tuple(step.params["padding"][axis]) != (0, 0)


def _dot_general(step: Step, inputs: list[Value]) -> Result:
    (contracted, batched) = step.params["dimension_numbers"]
    left, right = inputs
    if isinstance(left, Examples) and isinstance(right, Examples):
        same = left.place[1:] == right.place[1:]
        if same and (left.axis, right.axis) in zip(*batched, strict=True):
            return Examples(list(batched[0]).index(left.axis), left.outer, left.inner)
        if same and (left.axis, right.axis) in zip(*contracted, strict=True) and step.floating:
            return Mean(1)
        return "dot_general of examples with other examples"
    side, value = (0, left) if isinstance(left, Examples) else (1, right)
    if not isinstance(value, Examples) or value.axis in contracted[side] or value.axis in batched[side]:
        return "dot_general over the batch"
    used = [[*contracted[i], *batched[i]] for i in range(2)]
    free = [[i for i in range(len(step.shapes(s)[0])) if i not in used[s]] for s in range(2)]
    before = len(batched[0]) + (len(free[0]) if side else 0)
    return Examples(before + free[side].index(value.axis), value.outer, value.inner)


def _convolution(step: Step, inputs: list[Value]) -> Result:
    value, numbers = inputs[0], step.params["dimension_numbers"]
    if not isinstance(value, Examples) or not isinstance(inputs[1], Fixed):
        return "conv_general_dilated with a kernel made of the examples"
    if value.axis != numbers.lhs_spec[0] or step.params["batch_group_count"] != 1:
        return "conv_general_dilated over the batch"
    return Examples(numbers.out_spec[0], value.outer, value.inner)


def _batch_axis(step: Step, axis: int) -> int:
    """Returns the position of an axis of a gather's indices in its output."""
    offsets = step.params["dimension_numbers"].offset_dims
    return [i for i in range(len(step.new_shapes()[0])) if i not in offsets][axis]


def _gather(step: Step, inputs: list[Value]) -> Result:
    numbers = step.params["dimension_numbers"]
    value, indices = inputs
    if isinstance(indices, Examples):
        pairs = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
        itself = isinstance(value, Fixed) or (
            isinstance(value, Examples) and (value.axis, indices.axis) in pairs and value.place[1:] == indices.place[1:]
        )
        if not itself or indices.axis == len(step.shapes(1)[0]) - 1 or not step.same():
            return "gather of examples by other examples"
        return Examples(_batch_axis(step, indices.axis), indices.outer, indices.inner)
    if not isinstance(value, Examples):
        return "gather of the batch"
    used = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    whole = [a[value.axis] == b[value.axis] for a, b in zip(step.pair("slice_sizes"), step.shapes(), strict=True)]
    apart = value.axis not in used and value.axis not in numbers.start_index_map
    if not apart or not all(whole) or not step.same_but_along(value.axis, "slice_sizes"):
        return "gather of examples by their positions in the batch"
    kept = [i for i in range(len(step.shapes()[0])) if i not in used]
    return Examples(numbers.offset_dims[kept.index(value.axis)], value.outer, value.inner)


def _scatter(step: Step, inputs: list[Value]) -> Result:
    numbers = step.params["dimension_numbers"]
    value, indices, updates = inputs
    used = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    if not isinstance(value, Examples) or not isinstance(indices, Fixed) or not isinstance(updates, Examples):
        return f"{step.name} at positions that depend on an example"
    if value.axis in used or value.axis in numbers.scatter_dims_to_operand_dims:
        return f"{step.name} of the batch"
    kept = [i for i in range(len(step.shapes()[0])) if i not in used]
    fits = updates.place == (numbers.update_window_dims[kept.index(value.axis)], value.outer, value.inner)
    return Examples(*value.place) if fits else f"{step.name} of the batch"


def _in_matrix(step: Step, axis: int) -> bool:
    """Whether an axis is one of the last two, or of the last `len(fft_lengths)`."""
    return axis >= len(step.shapes()[0]) - len(step.params.get("fft_lengths", (0, 0)))


_MOVES = frozenset("broadcast_in_dim convert_element_type reshape squeeze transpose".split())
_PRODUCTS = frozenset("conv_general_dilated dot_general mul".split())
_SUMS = frozenset("add add_any concatenate stack sub".split())
_LINEAR = _MOVES | frozenset("cumsum div dynamic_slice neg reduce_sum rev slice".split())
_OF_COUNTS = _MOVES | frozenset("add add_any concatenate dynamic_slice reduce_sum rev slice stack".split())
_MAY_DIFFER = {
    "broadcast_in_dim": ("shape",),
    "reshape": ("new_sizes",),
    "slice": ("start_indices", "limit_indices", "strides"),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
}
"""Params that may contain the number of examples; the rule checks them."""

_ELEMENTWISE = ELEMENTWISE | frozenset(
    """
    bitcast_convert_type random_bits random_fold_in random_gamma random_seed random_split random_unwrap random_wrap
    """.split()
)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys("argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum".split(), _reduce),
    **dict.fromkeys("cumlogsumexp cummax cummin cumprod cumsum split".split(), _along("axis")),
    **dict.fromkeys(("concatenate", "sort"), _along("dimension")),
    **dict.fromkeys(
        "reduce_window reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add".split(),
        _unless(_in_window),
    ),
    **dict.fromkeys("scatter scatter-add scatter_add scatter-mul scatter_mul".split(), _scatter),
    **dict.fromkeys("cholesky eigh fft triangular_solve".split(), _unless(_in_matrix)),
    "broadcast_in_dim": _moved(lambda step, axis: step.params["broadcast_dimensions"][axis]),
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _unless(lambda step, axis: tuple(step.params["padding_config"][axis]) != (0, 0, 0)),
    "reshape": _reshape,
    "rev": _unless(lambda step, axis: axis in step.params["dimensions"]),
    "slice": _slice,
    "stack": _stack,
    "squeeze": _moved(lambda step, axis: axis - sum(i < axis for i in step.params["dimensions"])),
    "top_k": _unless(lambda step, axis: axis == step.params.get("axis", len(step.shapes()[0]) - 1)),
    "tile": _elementwise,
    "unstack": _moved(lambda step, axis: axis - (step.params["axis"] < axis)),
    "transpose": _moved(lambda step, axis: list(step.params["permutation"]).index(axis)),
}
