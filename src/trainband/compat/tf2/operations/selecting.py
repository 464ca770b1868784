"""What decides by values which rows a result has, and functions over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.checks import Checked, check
from trainband.compat.tf2.eager.control import map_fn
from trainband.compat.tf2.eager.execute import TENSORS, compute, convert
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.structure import flatten, map_structure, pack
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.operations.defining import known

_gather, _reshape, _stack = known("tf.gather"), known("tf.reshape"), known("tf.stack")
_table_gather_nd = known("tf.gather_nd")


def boolean_mask(tensor: Any, mask: Any, axis: Any = None, name: str = "boolean_mask") -> Tensor:
    """The rows for which a mask is true.

    Raises:
      ValueError: the mask has no axes, or its shape is not that of the tensor's axes.
    """
    del name
    whole, chosen = convert(tensor), np.asarray(TENSORS.known(mask, "boolean_mask: mask"))
    first = 0 if axis is None else int(convert(axis))
    if not chosen.ndim:
        raise ValueError("mask cannot be scalar.")
    sizes = whole.aval[0]
    TensorShape(sizes[first : first + chosen.ndim]).assert_is_compatible_with(TensorShape(chosen.shape))
    if chosen.ndim > 1:
        whole = _reshape(whole, [*sizes[:first], -1, *sizes[first + chosen.ndim :]])
    found: Tensor = _gather(whole, np.flatnonzero(chosen), axis=first)
    return found


def dynamic_partition(data: Any, partitions: Any, num_partitions: int, name: str | None = None) -> list[Tensor]:
    """The rows of each part; `partitions` says to which part each row belongs."""
    del name
    whole, parts = convert(data), np.asarray(TENSORS.known(partitions, "dynamic_partition: partitions"))
    if parts.ndim != 1:
        whole = _reshape(whole, [parts.size, *whole.aval[0][parts.ndim :]])
    return [_gather(whole, np.flatnonzero(parts.reshape(-1) == part)) for part in range(int(num_partitions))]


def gather_nd(
    params: Any, indices: Any, batch_dims: int = 0, name: str | None = None, bad_indices_policy: str = ""
) -> Tensor:
    """The elements or parts at places that are lists of numbers; the first axes of both may be the same batch."""
    del name, bad_indices_policy
    if not int(batch_dims):
        found: Tensor = _table_gather_nd(params, indices)
        return found
    one: Callable[..., Any] = lambda some, places: some[tuple(jnp.moveaxis(places, -1, 0))]  # noqa: E731
    for _ in range(int(batch_dims)):
        one = jax.vmap(one)
    return compute(
        ("gather_nd", int(batch_dims)), lambda *of: (one(*map(jnp.asarray, of)),), [convert(params), convert(indices)]
    )[0]


def foldl(fn: Callable[..., Any], elems: Any, initializer: Any = None, *_: Any, **__: Any) -> Any:
    """What a function of (what came before, a row) gives in the end, from the first row to the last."""
    return _folded(fn, elems, initializer, reverse=False)[-1]


def foldr(fn: Callable[..., Any], elems: Any, initializer: Any = None, *_: Any, **__: Any) -> Any:
    """The same, from the last row to the first."""
    return _folded(fn, elems, initializer, reverse=True)[-1]


def scan(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """What a function of (what came before, a row) gives for each row, one above the other."""
    del parallel_iterations, back_prop, swap_memory, infer_shape, name
    found = _folded(fn, elems, initializer, reverse=reverse)
    found = found[1:] if initializer is not None else found
    return map_structure(lambda *rows: _stack(list(rows)), *(found[::-1] if reverse else found))


def _folded(fn: Callable[..., Any], elems: Any, initializer: Any, *, reverse: bool) -> list[Any]:
    tensors = map_structure(convert, elems)
    order = list(range(flatten(tensors)[0].aval[0][0]))
    rows = [map_structure(lambda one, at=at: one[at], tensors) for at in (order[::-1] if reverse else order)]
    found = [map_structure(convert, initializer)] if initializer is not None else [rows.pop(0)]
    for row in rows:
        found.append(map_structure(convert, fn(found[-1], row)))
    return found


def vectorized_map(fn: Callable[..., Any], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True) -> Any:
    """What a function gives for each row, computed for all rows at once."""
    del warn
    tensors = flatten(map_structure(convert, elems))
    structures: list[Any] = []

    def of_row(*rows: Any) -> list[Any]:
        result = fn(pack(elems, [Tensor(row) for row in rows]))
        structures[:] = [map_structure(lambda _: None, result)]
        return [convert(one).array for one in flatten(result)]

    def of_all(*arrays: Any) -> list[Any]:
        checked = Checked(of_row)
        results: list[Any]
        results, conditions = jax.vmap(checked)(*arrays)
        for condition, message in zip(conditions, checked.messages, strict=True):
            check(condition.all, message)
        return results

    try:
        found = compute(("vectorized_map", fn, len(tensors)), of_all, tensors)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, NotImplementedError):
        if not fallback_to_while_loop:
            raise
        return map_fn(fn, elems)
    if not structures:
        of = [jax.ShapeDtypeStruct(one.aval[0][1:], one.aval[1]) for one in tensors]
        jax.eval_shape(of_row, *of)
    return pack(structures[0], found)


def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose derivative is 1 whatever it computes."""
    from trainband.compat.tf2.eager.control import custom_gradient

    def call(x: Any) -> Any:
        return custom_gradient(lambda tensor: (f(tensor), lambda upstream: upstream))(x)

    return call


def tuple_(tensors: Any, control_inputs: Any = None, name: str | None = None) -> list[Any]:
    """The tensors themselves: all are computed."""
    del control_inputs, name
    return list(tensors)
