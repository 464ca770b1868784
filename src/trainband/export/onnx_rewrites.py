"""Rewrites and plugins for operations that jax2onnx lacks, or writes in a way that ONNX Runtime cannot run."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from trainband.export.operations import Rewrite, unrolled_scan
from trainband.export.rewrites import convolution, dot_of_integers, padded


def _dot_general(left: Any, right: Any, *, preferred_element_type: Any, **params: Any) -> Any:
    """ONNX multiplies matrices of one dtype, not 8-bit integers."""
    integers = dot_of_integers(left, right, preferred_element_type=preferred_element_type or left.dtype, **params)
    if integers is not None:
        return integers
    dtype = jnp.dtype(preferred_element_type or jnp.result_type(left, right))
    if left.dtype == right.dtype == dtype:
        return None
    return jax.lax.dot_general_p.bind(left.astype(dtype), right.astype(dtype), preferred_element_type=dtype, **params)


def _stack(*arrays: Any, axis: int) -> Any:
    return jax.lax.concatenate([jax.lax.expand_dims(array, (axis,)) for array in arrays], axis)


def _unstack(array: Any, *, axis: int, **_: Any) -> list[Any]:
    return [jax.lax.index_in_dim(array, at, axis, keepdims=False) for at in range(array.shape[axis])]


def _log2(array: Any, **_: Any) -> Any:
    return jnp.log(array) * jnp.asarray(1 / math.log(2), array.dtype)


def _one_minus_square(array: Any, **_: Any) -> Any:
    return 1 - array * array


def _reduce_window_min(array: Any, **params: Any) -> Any:
    return -jax.lax.reduce_window_max_p.bind(-array, **params)


def _composite(*arrays: Any, jaxpr: Any, **_: Any) -> Any:
    return jaxpr_as_fun(jaxpr)(*arrays)


def _reshard(array: Any, **_: Any) -> Any:
    return array + 0 if array.dtype != bool else array | False


def _rem(left: Any, right: Any, **_: Any) -> Any:
    """The remainder of integers; jax2onnx's plugin needs known lengths."""
    return left - jax.lax.div(left, right) * right if jnp.issubdtype(left.dtype, jnp.integer) else None


def _select_n(which: Any, *cases: Any) -> Any:
    """ONNX Runtime cannot select booleans."""
    if len(cases) != 2 or cases[0].dtype != bool or which.dtype != bool:
        return None
    return (which & cases[1]) | (~which & cases[0])


REWRITES: dict[str, Rewrite] = {
    "composite": _composite,
    "conv_general_dilated": convolution,
    "pad": padded,
    "rem": _rem,
    "reshard": _reshard,
    "select_n": _select_n,
    "dot_general": _dot_general,
    "log2": _log2,
    "one_minus_square": _one_minus_square,
    "reduce_window_min": _reduce_window_min,
    "scan": unrolled_scan,
    "stack": _stack,
    "unstack": _unstack,
}
"""By primitive, for `program_jaxpr`."""


@functools.cache
def add_plugins() -> None:
    """Registers our plugins in place of jax2onnx's for the same primitives."""
    from jax2onnx.plugins.plugin_system import PrimitiveLeafPlugin, import_all_plugins, register_primitive

    import_all_plugins()

    class Pooling(PrimitiveLeafPlugin):  # type: ignore[misc]
        """The plugin through which jax2onnx calls `_lower_pooling`."""

        def __init__(self) -> None:
            self.before = self.primitive = ""

        def lower(self, ctx: Any, eqn: Any) -> None:
            _lower_pooling(ctx, eqn)

    for primitive in ("reduce_window_max", "reduce_window_sum"):
        register_primitive(jaxpr_primitive=primitive, component=f"trainband_{primitive}", testcases=[])(Pooling)


def _lower_pooling(ctx: Any, eqn: Any) -> None:
    """Writes a window that slides over some axes as ONNX's pooling, which needs these axes last.

    jax2onnx pools over all axes, four for an image, but ONNX Runtime has kernels for three.
    """
    import numpy as np
    import onnx_ir as ir

    params = eqn.params
    window = params["window_dimensions"]
    rank = len(window)
    slides = [axis for axis in range(rank) if _slides(params, axis)]
    stays = [axis for axis in range(rank) if axis not in slides]
    if len(stays) > 2 or not 1 <= len(slides) <= 3 or any(n != 1 for n in params["base_dilation"]):
        raise NotImplementedError(f"a window of shape {window} that slides over {len(slides)} axes")
    build = ctx.builder
    value = ctx.get_value_for_var(eqn.invars[0])
    spec = ctx.get_value_for_var(eqn.outvars[0])
    element = value.type
    shape = list(eqn.invars[0].aval.shape)

    def stamped(result: Any, dims: list[Any]) -> Any:
        result.type = element
        result.shape = ir.Shape([n if isinstance(n, int) else str(n) for n in dims])
        return result

    def fresh(name: str) -> list[str]:
        return [ctx.fresh_name(name)]

    missing = 2 - len(stays)
    order = [*stays, *slides]
    dims = [shape[axis] for axis in order]
    value = stamped(build.Transpose(value, perm=order, _outputs=fresh("pool_in")), dims)
    if missing:
        axes = build.add_initializer_from_array(ctx.fresh_name("pool_axes"), np.arange(missing))
        dims = [1] * missing + dims
        value = stamped(build.Unsqueeze(value, axes, _outputs=fresh("pool_unsqueezed")), dims)
    settings = {
        "kernel_shape": [window[axis] for axis in slides],
        "strides": [params["window_strides"][axis] for axis in slides],
        "dilations": [params["window_dilation"][axis] for axis in slides],
        "pads": [params["padding"][axis][end] for end in (0, 1) for axis in slides],
    }
    made = [eqn.outvars[0].aval.shape[axis] for axis in order]
    dims = [1] * missing + made
    name = eqn.primitive.name
    if name == "reduce_window_max":
        value = stamped(build.MaxPool(value, _outputs=fresh("max_pool"), **settings), dims)
    else:
        count = math.prod(settings["kernel_shape"])
        value = stamped(build.AveragePool(value, _outputs=fresh("average_pool"), count_include_pad=1, **settings), dims)
        factor = build.add_initializer_from_array(ctx.fresh_name("pool_count"), np.float32(count))
        value = stamped(build.Mul(value, factor, _outputs=fresh("sum_pool")), dims)
    if missing:
        value = stamped(build.Squeeze(value, axes, _outputs=fresh("pool_squeezed")), made)
    back = [order.index(axis) for axis in range(rank)]
    result = build.Transpose(value, perm=back, _outputs=[spec.name])
    ctx.bind_value_for_var(eqn.outvars[0], stamped(result, list(eqn.outvars[0].aval.shape)))


def _slides(params: Any, axis: int) -> bool:
    return (
        params["window_dimensions"][axis] != 1
        or params["window_strides"][axis] != 1
        or tuple(params["padding"][axis]) != (0, 0)
    )
