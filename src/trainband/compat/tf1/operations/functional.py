"""Functions of the rows of tensors: `map_fn`, `scan`, `foldl` and `foldr`. Their number of rounds is known in a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import array
from trainband.compat.ops.dtypes import DType, as_dtype, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.graph import Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, is_tensor, record
from trainband.compat.tf1.graphs.region import Body, done_before, is_pure, loop_variable, read_before, state_of
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.operators import slice_item
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.structures import assert_same_structure


def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,  # noqa: ARG001 - the compiler decides
    back_prop: bool = True,  # noqa: ARG001
    swap_memory: bool = False,  # noqa: ARG001
    infer_shape: bool = True,  # noqa: ARG001
    name: str | None = None,
    fn_output_signature: Any = None,
) -> Any:
    """The results of a function of each row, as tensors of as many rows.

    Raises:
      TypeError: `fn` is not callable.
      ValueError: the dtypes of the results are not those of `dtype`, or without it, of `elems`.
    """
    wanted = dtype if fn_output_signature is None else fn_output_signature
    with get_default_graph().name_scope(name or "map"):
        tensors = _rows_of(fn, elems)
        kinds = [one.dtype for one in tensors] if wanted is None else [_kind_of(one) for one in flatten(wanted)]
        structure: list[Any] = []

        def body(_: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            result = fn(pack_like(elems, rows))
            structure.append(result)
            if wanted is not None:
                assert_same_structure(wanted, result)
            return [], [
                convert(one, None if is_tensor(one) or kind == string else kind)
                for one, kind in itertools.zip_longest(flatten(result), kinds, fillvalue=string)
            ]

        found = _over_rows(body, [], tensors, reverse=False)
    if [one.dtype for one in found] != kinds:
        raise ValueError(
            f"fn must return tensors of {[one.name for one in kinds]}, got {[one.dtype.name for one in found]}; say "
            f"which by dtype (at {user_line()})"
        )
    return pack_like(structure[0] if wanted is None or isinstance(structure[0], list | tuple | dict) else wanted, found)


def scan(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,  # noqa: ARG001
    back_prop: bool = True,  # noqa: ARG001
    swap_memory: bool = False,  # noqa: ARG001
    infer_shape: bool = True,  # noqa: ARG001
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """The results of `fn(result so far, row)` for each row. Without an initializer, the first is the first row."""
    with get_default_graph().name_scope(name or "scan"):
        structure, first, rows = _begun(fn, elems, initializer, reverse=reverse)
        found = _over_rows(_folding(fn, structure, elems, each=True), first, rows, reverse=reverse)[len(first) :]
        if initializer is None:
            ends = [recorded(array.expand_dims)(one, 0) for one in first]
            pairs = zip(ends, found, strict=True)
            found = [recorded(array.concat)([b, a] if reverse else [a, b], 0) for a, b in pairs]
    return pack_like(structure, found)


def foldl(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,  # noqa: ARG001
    back_prop: bool = True,  # noqa: ARG001
    swap_memory: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """The last result of `fn(result so far, row)`, from the first row to the last."""
    with get_default_graph().name_scope(name or "foldl"):
        return _folded(fn, elems, initializer, reverse=False)


def foldr(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,  # noqa: ARG001
    back_prop: bool = True,  # noqa: ARG001
    swap_memory: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """The last result of `fn(result so far, row)`, from the last row to the first."""
    with get_default_graph().name_scope(name or "foldr"):
        return _folded(fn, elems, initializer, reverse=True)


def _folded(fn: Callable[[Any, Any], Any], elems: Any, initializer: Any, *, reverse: bool) -> Any:
    structure, first, rows = _begun(fn, elems, initializer, reverse=reverse)
    return pack_like(structure, _over_rows(_folding(fn, structure, elems, each=False), first, rows, reverse=reverse))


def _kind_of(wanted: Any) -> DType:
    return as_dtype(getattr(wanted, "dtype", wanted))


def _rows_of(fn: Any, elems: Any) -> list[Tensor]:
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {fn!r}.")
    tensors = [convert(one) for one in flatten(elems)]
    if not tensors:
        raise ValueError(f"elems must have at least one tensor (at {user_line()}).")
    if any(one.shape.ndims == 0 for one in tensors):
        raise ValueError(f"Elements in elems must be 1+ dimensional Tensors, not scalars (at {user_line()}).")
    return tensors


def _begun(fn: Any, elems: Any, initializer: Any, *, reverse: bool) -> tuple[Any, list[Tensor], list[Tensor]]:
    """(the structure of the result, its first values, the rows that are left)."""
    tensors = _rows_of(fn, elems)
    if initializer is not None:
        return initializer, [convert(one) for one in flatten(initializer)], tensors
    first = [slice_item(one, -1 if reverse else 0) for one in tensors]
    rest = slice(None, -1) if reverse else slice(1, None)
    return elems, first, [slice_item(one, rest) for one in tensors]


_Body = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[list[Tensor], list[Tensor]]]
"""From the values so far and one row to the next values, and what is kept of this round."""


def _folding(fn: Callable[[Any, Any], Any], structure: Any, elems: Any, *, each: bool) -> _Body:
    def body(values: Sequence[Tensor], rows: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        result = fn(pack_like(structure, values), pack_like(elems, rows))
        assert_same_structure(structure, result)
        after = [convert(one, value.dtype) for one, value in zip(flatten(result), values, strict=True)]
        return after, after if each else []

    return body


def _over_rows(body: _Body, first: Sequence[Tensor], rows: Sequence[Tensor], *, reverse: bool) -> list[Tensor]:
    """Record a loop over rows; returns the last values, and what was kept of each round."""
    graph = get_default_graph()
    inside = Region(graph.region)
    count = len(first)
    with graph.recording(inside):
        shapes = [*(one.shape for one in first), *(_of_row(one.shape) for one in rows)]
        variables = [loop_variable(one.dtype, shape) for one, shape in zip([*first, *rows], shapes, strict=True)]
        after, kept = body(variables[:count], variables[count:])
    return record_rows(inside, variables, after, kept, first, rows, reverse).outputs


def record_rows(
    inside: Region,
    variables: Sequence[Tensor],
    after: Sequence[Tensor],
    kept: Sequence[Tensor],
    first: Sequence[Tensor],
    rows: Sequence[Tensor],
    reverse: bool,
    name: str | None = None,
) -> Operation:
    """Record a region for each of some rows.

    Args:
      variables: those that stand for what is carried, and then those that stand for a row.
      after: what is carried to the next row.
      kept: what is kept of each row.
      first: what is carried to the first row.
    """
    again = {
        "inside": inside, "variables": list(variables), "after": list(after), "kept": list(kept),
        "first": list(first), "rows": list(rows), "reverse": reverse,
    }  # fmt: skip
    count = len(first)
    step = Body(inside, [*after, *kept], variables)
    early = read_before([step], [one.op for one in (*first, *rows)])
    function = step.function([*variables, *step.captured])
    reads, writes = state_of([step], always=False)
    names = [variable.op_name for variable in reads]

    def compute(frame: Frame, *values: Any) -> list[Any]:
        begin, some, fixed = values[:count], values[count : len(variables)], values[len(variables) :]
        many = int(np.shape(some[0])[0])
        checked = frame.checked()
        state = {name: jnp.asarray(frame.state[name]) for name in names} | checked

        def once(carry: Any, row: Any) -> tuple[Any, Any]:
            number, slices = row
            keys = None if frame.keys is None else frame.keys.round(number)
            found, now = function(carry[1], keys, [*carry[0], *slices, *fixed])
            ends = [
                jnp.asarray(v, one.dtype.numpy).astype(one.dtype.numpy)
                for v, one in zip(found[:count], first, strict=True)
            ]
            return (ends, {name: jnp.asarray(now[name]) for name in state}), found[count:]

        carry = [jnp.asarray(v, one.dtype.numpy) for v, one in zip(begin, first, strict=True)], state
        if any(one.dtype == string for one in (*rows, *kept)):
            (found, after), stacked = _one_by_one(once, carry, some, many, reverse=reverse)
        else:
            numbered = jnp.arange(many), [jnp.asarray(one) for one in some]
            (found, after), stacked = jax.lax.scan(once, carry, numbered, reverse=reverse)
        frame.state.update({name: after[name] for name in (*(v.op_name for v in writes), *checked)})
        return [*found, *stacked]

    length = next((one.shape.sizes[0] for one in rows if one.shape.sizes), None)
    return record(
        "Scan",
        compute,
        [*first, *rows, *step.captured, *early.values()],
        count=count + len(kept),
        dtypes=[*(one.dtype for one in first), *(one.dtype for one in kept)],
        shapes=[
            *(a.shape if a.shape == b.shape else TensorShape(None) for a, b in zip(first, after, strict=True)),
            *(TensorShape(None if k.shape.sizes is None else [length, *k.shape.sizes]) for k in kept),
        ],
        stateful=True,
        control_inputs=done_before([step]),
        reads=reads,
        writes=writes,
        name=name,
        attributes={"regions": (inside,), "pure": is_pure([step]), "again": ("Rows", again)},
    )


def _of_row(shape: TensorShape) -> TensorShape:
    return TensorShape(None if shape.sizes is None else shape.sizes[1:])


def _one_by_one(once: Any, carry: Any, rows: Sequence[Any], many: int, *, reverse: bool) -> tuple[Any, list[Any]]:
    """The loop in Python, for text, which is known while a run is traced."""
    kept: list[Any] = [None] * many
    for number in reversed(range(many)) if reverse else range(many):
        carry, kept[number] = once(carry, (number, [one[number] for one in rows]))
    return carry, [array.stack(each) for each in zip(*kept, strict=True)]
