"""Loops. `while_loop` becomes JAX's, and can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import ComputedError
from trainband.compat.ops.dtypes import bool_
from trainband.compat.ops.loops import run_loop
from trainband.compat.ops.sequences import allocated, with_room
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf1.graphs.graph import Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.guess import in_common
from trainband.compat.tf1.graphs.keys import Keys
from trainband.compat.tf1.graphs.lowering import Frame
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, known_value, record
from trainband.compat.tf1.graphs.region import Body, done_before, is_pure, loop_variable, read_before, state_of
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.tensor_array import growing


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,  # noqa: ARG001 - the compiler decides
    back_prop: bool = True,
    swap_memory: bool = False,  # noqa: ARG001
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """Record a loop that replaces its variables by `body(*loop_vars)` while `cond(*loop_vars)` holds.

    It can be differentiated. If the number of iterations follows from constants, as in a recurrent network over
    a fixed number of steps, the loop keeps what the backward pass needs; else it keeps the values of some iterations,
    and computes those in between again.

    Shapes may change, as `shape_invariants` says, only in a loop whose number of iterations follows from constants.

    Raises:
      TypeError: `cond` or `body` is not callable.
      ValueError: the body does not return as many tensors of the same dtypes and shapes.
    """
    if not callable(cond) or not callable(body):
        raise TypeError("cond and body must be callable.")
    graph = get_default_graph()
    with graph.name_scope(name or "while"):
        limit = None if maximum_iterations is None else convert(maximum_iterations)
        first = pack_like(loop_vars, [convert(one) for one in flatten(loop_vars)])
        starts: list[Tensor] = flatten(first)
        if not starts:
            raise ValueError("No loop variables provided.")
        shapes = _invariants(shape_invariants, first, starts)
        inside = Region(graph.region)
        with graph.recording(inside):
            flat = [loop_variable(one.dtype, shape) for one, shape in zip(starts, shapes, strict=True)]
            structured = pack_like(first, flat)
            arguments = structured if isinstance(structured, list | tuple) else [structured]
            check = convert(cond(*arguments), bool_)
            returned = body(*arguments)
            nexts = [convert(one) for one in flatten(returned)]
        _check_types(starts, shapes, nexts, varying=shape_invariants is not None)
        if shape_invariants is None:
            shapes = [in_common([a.shape, b.shape]) for a, b in zip(starts, nexts, strict=True)]
        op = record_loop(inside, flat, [check, *nexts], starts, limit, shapes, back_prop, growing(first))
    if return_same_structure:
        return pack_like(first, op.outputs)
    found = pack_like(returned, op.outputs)
    return found[0] if isinstance(found, list | tuple) and len(op.outputs) == 1 else found


def _invariants(given: Any, first: Any, starts: Sequence[Tensor]) -> list[TensorShape]:
    """The shape of each tensor that a loop carries. Of rows and sparse tensors, that of the whole may be given."""
    if given is None:
        return [start.shape for start in starts]
    shapes = [TensorShape(one.shape if isinstance(one, Tensor) else one) for one in flatten(given)]
    variables = flatten(first, objects=False)
    if len(shapes) == len(variables) != len(starts):
        shapes = [part for one, shape in zip(variables, shapes, strict=True) for part in _parts_of(one, shape)]
    if len(shapes) != len(starts):
        raise ValueError(f"{len(shapes)} shape_invariants for {len(starts)} loop variables (at {user_line()}).")
    return shapes


def _parts_of(variable: Any, shape: TensorShape) -> list[TensorShape]:
    if isinstance(variable, SparseTensor):
        if not shape.is_compatible_with(variable.shape):
            raise ValueError(f"The shape invariant {shape} is not compatible with {variable} (at {user_line()}).")
        rank = variable.shape.ndims if shape.sizes is None or None not in shape.sizes else None
        return [TensorShape([None, rank]), TensorShape([None]), TensorShape([rank])]
    if isinstance(variable, IndexedSlices):
        if not shape.is_compatible_with(variable.values.shape):
            raise ValueError(f"The shape invariant {shape} is not compatible with {variable} (at {user_line()}).")
        return [shape, TensorShape(None if shape.sizes is None else shape.sizes[:1])]
    return [shape] * len(flatten(variable))


def _check_types(
    starts: Sequence[Tensor], shapes: Sequence[TensorShape], nexts: Sequence[Tensor], *, varying: bool
) -> None:
    if len(starts) != len(nexts):
        raise ValueError(
            f"The two structures don't have the same number of elements: {len(starts)} loop variables, but the body "
            f"returned {len(nexts)} tensors (at {user_line()})"
        )
    if [one.dtype for one in nexts] != [one.dtype for one in starts]:
        raise ValueError(
            "The loop's body must return tensors of the dtypes of loop_vars: "
            f"{[one.dtype.name for one in starts]}, got {[one.dtype.name for one in nexts]} (at {user_line()})"
        )
    for start, shape, after in zip(starts, shapes, nexts, strict=True):
        if not shape.is_compatible_with(start.shape):
            raise ValueError(f"The shape invariant {shape} is not that of {start} (at {user_line()}).")
        if not shape.is_compatible_with(after.shape):
            hint = (
                ""
                if varying
                else (
                    " To allow the shape to vary across iterations, use the `shape_invariants` argument of "
                    "tf.while_loop to specify a less-specific shape."
                )
            )
            raise ValueError(
                f"Input tensor '{start.name}' enters the loop with shape {shape}, but has shape {after.shape} after "
                f"one iteration.{hint} (at {user_line()})"
            )


def record_loop(
    region: Region,
    variables: Sequence[Tensor],
    outputs: Sequence[Tensor],
    starts: Sequence[Tensor],
    limit: Tensor | None,
    shapes: Sequence[TensorShape],
    back_prop: bool,
    grow: dict[int, int],
    name: str = "Exit",
) -> Operation:
    """Record a loop over a region.

    Args:
      outputs: whether it goes on, and the next values of the variables.
      starts: their first values.
      limit: the largest number of rounds.
      grow: of outputs that grow by a row in each round, the variable that counts the rows.
    """
    again = {
        "region": region, "variables": list(variables), "outputs": list(outputs), "starts": list(starts),
        "limit": limit, "shapes": list(shapes), "back_prop": back_prop, "grow": grow,
    }  # fmt: skip
    body = Body(region, outputs, variables)
    check, *nexts = body.outputs
    early = read_before([body], [start.op for start in starts])
    given = [*body.variables, *body.captured]
    judge, step = body.function(given, [check]), body.function(given, nexts)
    reads, writes = state_of([body], always=False)
    names = list(dict.fromkeys(v.op_name for v in (*reads, *writes)))
    counted = _counted(body.region, body.variables, body.captured, check, nexts)
    lengths = [body.variables[i] for i in grow.values()]
    measured = _counted(body.region, body.variables, body.captured, check, nexts, lengths) if grow else None

    def compute(frame: Frame, *values: Any) -> list[Any]:
        most = None if limit is None else values[-1]
        values = values[: len(values) - (limit is not None)]
        begin, constants = values[: len(starts)], values[len(starts) :]
        checked = frame.checked()
        state = {name: jnp.asarray(frame.state[name]) for name in names} | checked

        def keys_in(number: Any) -> Keys | None:
            return None if frame.keys is None else frame.keys.round(number)

        def continues(carry: Any, fixed: Sequence[Any], number: Any) -> Any:
            return judge(carry[1], keys_in(number), [*carry[0], *fixed])[0][0]

        def once(carry: Any, fixed: Sequence[Any], number: Any) -> Any:
            found, after = step(carry[1], keys_in(number), [*carry[0], *fixed])
            typed = [
                jnp.asarray(v, start.dtype.numpy).astype(start.dtype.numpy)
                for v, start in zip(found, starts, strict=True)
            ]
            return typed, {name: jnp.asarray(after[name]) for name in state}

        fixed = constants[: len(body.captured)]
        rounds = (counted(begin, fixed, most) or (None,))[0]
        first = [jnp.asarray(v, start.dtype.numpy) for v, start in zip(begin, starts, strict=True)]
        ends: dict[int, Any] = {}
        if measured is not None:
            last = (measured(begin, fixed, most) or (None, {}))[1]
            ends = {i: last[body.variables[i]] for i in grow.values() if body.variables[i] in last}
            for held, length in grow.items():
                first[held] = with_room(first[held], _room(ends.get(length), begin[length], most))
        first = list(allocated(first, lambda some: once((list(some), state), constants, jnp.int32(0))[0]))
        found, after = run_loop(
            continues, once, (first, state), list(constants), rounds=rounds, most=most, differentiable=back_prop
        )
        frame.state.update({name: after[name] for name in (*(v.op_name for v in writes), *checked)})
        return [ends.get(i, one) for i, one in enumerate(found)]

    return record(
        "While",
        compute,
        [*starts, *body.captured, *early.values(), *([limit] if limit is not None else [])],
        count=len(starts),
        dtypes=[one.dtype for one in starts],
        shapes=shapes,
        stateful=True,
        control_inputs=done_before([body]),
        reads=reads,
        writes=writes,
        name=name,
        attributes={
            "regions": (body.region,),
            "pure": is_pure([body]),
            "again": ("While", again),
            "flat": not back_prop,
            **_how_long(body, starts, limit, check),
        },
    )


def _how_long(body: Body, starts: Sequence[Tensor], limit: Tensor | None, check: Tensor) -> dict[str, Any]:
    """The attribute `uncounted`, unless it is plain now that the number of iterations follows from constants."""
    if limit is not None and known_value(limit) is not None:
        return {}
    known = dict(zip(body.variables, starts, strict=True))
    on = [known.get(source, source) for source in _sources(check, body.region)]
    plain = on and all(known_value(one) is not None for one in on)
    return {} if plain else {"uncounted": True}


def _room(length: Any, before: Any, most: Any) -> int:
    """How many elements of a `TensorArray` that grows in a loop there must be room for."""
    if length is not None:
        return int(length)
    known = [one for one in (before, most) if one is not None and not isinstance(one, jax.Array | jax.core.Tracer)]
    if len(known) < 2:
        raise ComputedError(
            "a TensorArray grows in a loop whose number of iterations depends on computed values: pass size= or "
            "maximum_iterations=."
        )
    return int(known[0]) + int(known[1])


def _counted(
    inside: Region,
    variables: Sequence[Tensor],
    captured: Sequence[Tensor],
    check: Tensor,
    nexts: Sequence[Tensor],
    also: Sequence[Tensor] = (),
) -> Callable[[Sequence[Any], Sequence[Any], Any], tuple[int, dict[Tensor, Any]] | None]:
    """Return a function that counts a loop's iterations, if its condition depends on constants only.

    It runs only this part of the loop, in NumPy, while the rest is traced. It also gives the last values of the
    variables that this part looks at, and of others if asked to.
    """
    looked_at = {variable for variable in variables if variable in _sources(check, inside)} | set(also)
    while True:
        more = {
            variable
            for one in looked_at
            for variable in variables
            if variable in _sources(nexts[list(variables).index(one)], inside)
        }
        if more <= looked_at:
            break
        looked_at |= more
    chosen = [i for i, variable in enumerate(variables) if variable in looked_at]
    needed = {tensor for i in chosen for tensor in _sources(nexts[i], inside)} | _sources(check, inside)

    def count(
        begin: Sequence[Any], constants: Sequence[Any], most: Any
    ) -> tuple[int, dict[Tensor, Any]] | None:  # fmt: skip
        known = {**dict(zip(variables, begin, strict=True)), **dict(zip(captured, constants, strict=True))}
        if any(isinstance(known.get(t), jax.Array | jax.core.Tracer) for t in needed if t in known):
            return None
        if isinstance(most, jax.Array | jax.core.Tracer):
            return None
        values = {variables[i]: np.asarray(begin[i]) for i in chosen}
        fixed = {tensor: known[tensor] for tensor in captured if tensor in needed}
        rounds, last = 0, MOST_COUNTED if most is None else int(most)
        try:
            while rounds < last:
                frame = Frame({}, None, {**values, **fixed})
                if not bool(frame.value(check)):
                    return rounds, values
                after = {variables[i]: frame.value(nexts[i]) for i in chosen}
                if any(isinstance(value, jax.Array | jax.core.Tracer) for value in after.values()):
                    return None
                values = after
                rounds += 1
        except (AttributeError, KeyError, RuntimeError, TypeError, OpError):
            return None
        return None if most is None else (rounds, values)

    return count


MOST_COUNTED = 100_000
"""Iterations after which counting is given up."""


def _sources(tensor: Tensor, inside: Region) -> set[Tensor]:
    """Return the outer tensors and loop variables on which a tensor in a region depends."""
    found: set[Tensor] = set()
    seen: set[Tensor] = set()
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if not inside.contains(one.op) or (one.op.type == "LoopVariable" and one.op.region is inside):
            found.add(one)
        else:
            waiting += one.op.inputs
    return found
