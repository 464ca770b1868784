"""Rewrites operations that litert-converter lacks for any batch size, and 8-bit weights into the form it expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun  # type: ignore[attr-defined]
from numpy.typing import NDArray

from trainband.export.operations import Rewrite, part_of, unrolled_scan
from trainband.export.rewrites import convolution, dot_of_integers

_LEVELS = 127


def rewrites(*, dynamic: bool) -> dict[str, Rewrite]:
    """Returns the rewrites for `program_jaxpr`. `dynamic`: whether a length of an input may vary between calls."""
    found: dict[str, Rewrite] = {
        "conv_general_dilated": convolution,
        "dot_general": dot_of_integers,
        "mul": _mul,
        "scan": unrolled_scan,
    }
    if dynamic:
        found |= {"argmax": _argmax, "argmin": _argmin, "gather": _gather, "rev": _rev, "slice": _slice}
    return found


def _mul(left: Any, right: Any, **_: Any) -> Any:
    """LiteRT cannot multiply 8-bit integers."""
    if left.dtype.itemsize > 1 or not jnp.issubdtype(left.dtype, jnp.integer):
        return None
    return (left.astype(jnp.int32) * right.astype(jnp.int32)).astype(left.dtype)


def _argmax(operand: Any, *, axes: tuple[int, ...], index_dtype: Any) -> Any:
    return _first_where(operand, jnp.max, axes, index_dtype)


def _argmin(operand: Any, *, axes: tuple[int, ...], index_dtype: Any) -> Any:
    return _first_where(operand, jnp.min, axes, index_dtype)


def _first_where(operand: Any, reduce: Any, axes: tuple[int, ...], index_dtype: Any) -> Any:
    """The first position of an extreme value or NaN, without a reduction of pairs."""
    (axis,) = axes
    length = operand.shape[axis]
    found = operand == reduce(operand, axis=axis, keepdims=True)
    if jnp.issubdtype(operand.dtype, jnp.inexact):
        found |= operand != operand
    shape = [1] * operand.ndim
    shape[axis] = length
    positions = jnp.arange(length, dtype=jnp.float32).reshape(shape)
    return jnp.min(jnp.where(found, positions, jnp.float32(length)), axis=axis).astype(index_dtype)


def _gather(operand: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, **_: Any) -> Any:
    """Rewrites a known index or range, which JAX writes as a gather of slices; the converter needs known lengths."""
    axes = dimension_numbers.start_index_map
    if not isinstance(indices, np.ndarray) or indices.shape != (len(axes),) or dimension_numbers.operand_batching_dims:
        return None
    for axis, start in zip(axes, indices.tolist(), strict=True):
        operand = _range(operand, axis, min(max(start, 0), operand.shape[axis] - slice_sizes[axis]), slice_sizes[axis])
    kept = tuple(axis for axis in range(operand.ndim) if axis not in dimension_numbers.collapsed_slice_dims)
    if any(operand.shape[axis] != slice_sizes[axis] for axis in kept) or dimension_numbers.offset_dims != tuple(
        range(len(kept))
    ):
        return None
    return operand.reshape([operand.shape[axis] for axis in kept])


def _slice(operand: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    for axis, (start, limit) in enumerate(zip(start_indices, limit_indices, strict=True)):
        stride = 1 if strides is None else strides[axis]
        if limit is operand.shape[axis] and start == 0 and stride == 1:
            continue
        if not all(isinstance(length, int | np.integer) for length in (operand.shape[axis], start, limit)):
            return None
        operand = _range(operand, axis, start, limit - start)
        if stride != 1:
            rows = [_range(operand, axis, at, 1) for at in range(0, operand.shape[axis], stride)]
            operand = jax.lax.concatenate(rows, axis)
    return operand


def _rev(operand: Any, *, dimensions: Any) -> Any:
    for axis in dimensions:
        if not isinstance(operand.shape[axis], int):
            return None
        rows = jax.lax.split(operand, [1] * operand.shape[axis], axis)
        operand = jax.lax.concatenate(rows[::-1], axis)
    return operand


def _range(operand: Any, axis: int, start: int, length: int) -> Any:
    """Takes rows along an axis by JAX's split, which the converter supports for any number of examples."""
    sizes = [int(size) for size in (start, length, operand.shape[axis] - start - length)]
    parts = jax.lax.split(operand, [size for size in sizes if size], axis)
    return parts[1 if sizes[0] else 0]


def with_quantised_constants(closed: Any, weights: Sequence[NDArray[Any]]) -> tuple[Any, bool]:
    """Turns products of 8-bit weights and their scales into quantised constants.

    The converter would compute these products and store floats. A composite `quant.fake_quant`, as written by Google's
    Qwix, makes it store the integers and the scales.

    Args:
      closed: a program that takes weights, then inputs.
      weights: the values of its first variables.

    Returns:
      The program, and whether it has any.
    """
    jaxpr = closed.jaxpr
    given = dict(zip(jaxpr.invars, weights, strict=False))
    known: set[Var] = set(given)
    integers = {var for var, weight in given.items() if weight.dtype == np.int8}
    converted: set[Var] = set()
    products: list[tuple[int, Any, Any]] = []  # index, factor, its scale
    for at, eqn in enumerate(jaxpr.eqns):
        variables = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        if not variables or not all(var in known for var in variables):
            continue
        known.update(eqn.outvars)
        name = eqn.primitive.name
        if name in ("reshape", "transpose", "copy", "squeeze", "expand_dims") and variables[0] in integers:
            integers.update(eqn.outvars)
        elif name == "convert_element_type" and variables[0] in integers:
            converted.update(eqn.outvars)
        elif name == "mul" and any(var in converted for var in variables) and len(eqn.invars) == 2:
            values, scale = eqn.invars if eqn.invars[0] in converted else eqn.invars[::-1]
            if eqn.outvars[0].aval.dtype == jnp.float32:
                products.append((at, values, scale))
    if not products:
        return closed, False
    wanted = [atom for _, *atoms in products for atom in atoms if not isinstance(atom, Literal)]
    found = dict(zip(wanted, _evaluated(closed, wanted, weights), strict=True))
    eqns = list(jaxpr.eqns)
    made = False
    for at, values, scale in products:
        steps = np.asarray(scale.val if isinstance(scale, Literal) else found[scale], np.float32)
        axis = _axis_of(steps, found[values].shape)
        composite = _composite(found[values], steps, axis)
        if composite is not None and _accepts_quantised(jaxpr, jaxpr.eqns[at].outvars[0], axis):
            eqns[at] = composite.replace(outvars=jaxpr.eqns[at].outvars, source_info=jaxpr.eqns[at].source_info)
            made = True
    return part_of(ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts), jaxpr.outvars), made


def _evaluated(closed: Any, outputs: Sequence[Any], weights: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    part = part_of(closed, outputs)
    inputs = [*weights, *(_zeros(var.aval) for var in part.jaxpr.invars[len(weights) :])]
    return [np.asarray(array) for array in jaxpr_as_fun(part)(*inputs)]


def _axis_of(scale: NDArray[Any], shape: tuple[int, ...]) -> int | None:
    """Returns the axis along which a scale varies: `None` for none, -1 for several."""
    steps = np.broadcast_to(scale, shape)
    axes = [axis for axis in range(len(shape)) if shape[axis] > 1 and (steps != steps.take([0], axis)).any()]
    return None if not axes else axes[0] if len(axes) == 1 else -1


def _accepts_quantised(jaxpr: Any, var: Any, axis: int | None) -> bool:
    """Whether a constant goes only into products that LiteRT has for quantised weights.

    For others (a gather from an embedding, a product over two axes) the converter crashes, or uses wrong scales.
    """
    uses = [eqn for eqn in jaxpr.eqns if any(atom is var for atom in eqn.invars)]
    for eqn in uses:
        name, params = eqn.primitive.name, eqn.params
        at = next(i for i, atom in enumerate(eqn.invars) if atom is var)
        if name == "transpose":
            taken = _accepts_quantised(
                jaxpr, eqn.outvars[0], None if axis is None else params["permutation"].index(axis)
            )
        elif name == "dot_general":
            contracted, batched = (sides[at] for sides in params["dimension_numbers"])
            taken = var.aval.ndim == 2 and len(contracted) == 1 and not batched and axis not in contracted
        elif name == "conv_general_dilated":
            taken = at == 1 and axis in (None, params["dimension_numbers"].rhs_spec[0])
        else:
            taken = False
        if not taken:
            return False
    return bool(uses) and not any(atom is var for atom in jaxpr.outvars)


def _composite(values: NDArray[Any], scale: NDArray[Any], axis: int | None) -> Any:
    """Returns the equation of a quantised constant; `None` if it cannot be one."""
    if axis == -1 or np.abs(values).max(initial=0) > _LEVELS or not (np.isfinite(scale) & (scale >= 0)).all():
        return None
    steps = np.broadcast_to(scale, values.shape)
    flat = steps.reshape(-1)[:1] if axis is None else np.moveaxis(steps, axis, 0).reshape(values.shape[axis], -1)[:, 0]
    settings = {
        "dtype": "i8",
        "narrow_range": True,
        "scale": np.where(flat > 0, flat, 1).astype(np.float32),  # 0 only if all values are
        "zero_point": np.zeros(len(flat), np.int64),
    }
    if axis is not None:
        settings["quantization_dimension"] = axis
    composite = jax.lax.composite(lambda weights, **_: weights, "quant.fake_quant")
    constant = np.asarray(values * steps, np.float32)
    traced = jax.make_jaxpr(lambda weights: composite(weights, **settings))(constant)
    (eqn,) = traced.jaxpr.eqns
    return eqn.replace(invars=[Literal(constant, traced.jaxpr.invars[0].aval)])


def _zeros(aval: Any) -> NDArray[Any]:
    return np.zeros([length if isinstance(length, int) else 1 for length in aval.shape], aval.dtype)
