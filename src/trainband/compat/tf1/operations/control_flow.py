"""Grouping, branches and loops. `cond` and `while_loop` become JAX's, and can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import array
from trainband.compat.ops.dtypes import bool_, string
from trainband.compat.ops.loops import run_loop
from trainband.compat.ops.sequences import allocated, with_room
from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Region, Stored, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import Frame, capture, region_function
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.tensor_array import growing


def no_op(name: str | None = None) -> Operation:
    """Record an operation that does nothing, for its control dependencies."""
    return record("NoOp", lambda: (), count=0, name=name)


def group(*inputs: Any, name: str | None = None) -> Operation:
    """Record an operation that is done when all inputs are."""
    graph = get_default_graph()
    flat = [one for item in inputs for one in flatten(item) if one is not None]
    with graph.control_dependencies(flat):
        return no_op(name or "group_deps")


def tuple_(tensors: Sequence[Any], name: str | None = None, control_inputs: Any = None) -> list[Any]:
    """Return the same tensors, none of which is available before all are."""
    graph = get_default_graph()
    known = [one for one in tensors if one is not None]
    with graph.name_scope(name or "tuple"), graph.control_dependencies([*known, *(control_inputs or [])]):
        return [None if one is None else recorded(array.identity)(one) for one in tensors]


def with_dependencies(dependencies: Sequence[Any], output: Any, name: str | None = None) -> Any:
    """Return a tensor that is available only when some operations are done."""
    with get_default_graph().control_dependencies(dependencies):
        return recorded(array.identity)(output, name)


def _recorded(graph: Graph, function: Callable[..., Any], *arguments: Any) -> tuple[Region, Any]:
    region = Region(graph.region)
    with graph.recording(region):
        result = function(*arguments)
        if result is None:
            raise ValueError(f"A branch or loop body must return something (at {user_line()}).")
        outputs = pack_like(result, [_as_output(one) for one in flatten(result)])
    return region, outputs


def _as_output(value: Any) -> Any:
    """Convert an output to a tensor; an operation becomes one that is available when it is done."""
    if isinstance(value, Operation):
        return with_dependencies([value], np.bool_(True))
    return convert(value)


def _changed(region: Region) -> tuple[list[Stored], list[Stored]]:
    reads = {v.op_name: v for op in region.operations for v in op.reads}
    writes = {v.op_name: v for op in region.operations for v in op.writes}
    return list(reads.values()), list(writes.values())


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,  # noqa: ARG001 - a list of one stays a list here
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """Record one of two branches, chosen by a condition at run time.

    Raises:
      TypeError: a branch is not callable.
      ValueError: the branches return different structures or dtypes.
    """
    graph = get_default_graph()
    first, second = true_fn or fn1, false_fn or fn2
    if not callable(first) or not callable(second):
        raise TypeError("true_fn and false_fn must be callable.")
    if isinstance(pred, bool):
        raise TypeError("pred must not be a Python bool")
    with graph.name_scope(name or "cond"):
        chosen = convert(pred, bool_)
        on_true, yes = _recorded(graph, first)
        on_false, no = _recorded(graph, second)
        outputs = list(zip(flatten(yes), flatten(no), strict=False))
        if len(flatten(yes)) != len(flatten(no)):
            raise ValueError(f"true_fn and false_fn must return the same number of tensors (at {user_line()}).")
        for a, b in outputs:
            if a.dtype != b.dtype:
                raise ValueError(
                    f"Outputs of true_fn and false_fn must have the same type(s). Received {a.dtype.name} from true_fn "
                    f"and {b.dtype.name} from false_fn. (at {user_line()})"
                )
        op = _branching(chosen, (on_true, on_false), outputs)
    return pack_like(yes, op.outputs)


def _branching(pred: Tensor, regions: tuple[Region, Region], outputs: Sequence[tuple[Tensor, Tensor]]) -> Operation:
    captured = [capture(region, [pair[i] for pair in outputs]) for i, region in enumerate(regions)]
    given = list(dict.fromkeys([*captured[0], *captured[1]]))
    functions = [region_function(region, [pair[i] for pair in outputs], given) for i, region in enumerate(regions)]
    reads, writes = (list({v.op_name: v for region in regions for v in _changed(region)[i]}.values()) for i in (0, 1))
    names = list(dict.fromkeys(v.op_name for v in (*reads, *writes)))
    numeric = [i for i, tensor in enumerate(given) if tensor.dtype != string]

    def compute(frame: Frame, chosen: Any, *values: Any) -> list[Any]:
        def branch(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(arguments: Sequence[Any], state: dict[str, Any]) -> Any:
                whole = list(values)
                for i, value in zip(numeric, arguments, strict=True):
                    whole[i] = value
                found, after = function(state, frame.keys, whole)
                typed = [jnp.asarray(v, pair[0].dtype.numpy) for v, pair in zip(found, outputs, strict=True)]
                return typed, {name: jnp.asarray(after[name]) for name in names}

            return run

        state = {name: jnp.asarray(frame.state[name]) for name in names}
        arguments = [jnp.asarray(values[i]) for i in numeric]
        found, after = jax.lax.cond(chosen, *map(branch, functions), arguments, state)
        frame.state.update({v.op_name: after[v.op_name] for v in writes})
        return list(found)

    shapes = [a.shape if a.shape == b.shape else None for a, b in outputs]
    return record(
        "If",
        compute,
        [pred, *given],
        count=len(outputs),
        dtypes=[a.dtype for a, _ in outputs],
        shapes=shapes,
        stateful=True,
        reads=reads,
        writes=writes,
        name="Merge",
        attributes={"regions": regions},
    )


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,  # noqa: ARG001
    name: str = "case",
) -> Any:
    """Record the first of several branches whose condition is true.

    Raises:
      ValueError: there is no default.
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, dict) else list(pred_fn_pairs)
    if default is None:
        raise ValueError("case() needs a default.")
    result = default
    for pred, function in reversed(pairs):
        result = _either(pred, function, result, name)
    return result()


def _either(pred: Any, function: Callable[[], Any], other: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: cond(pred, function, other, name=name)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,  # noqa: ARG001 - a run's shapes are all known, and must stay the same in a loop
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

    Raises:
      ValueError: the body does not return as many tensors of the same dtypes.
    """
    graph = get_default_graph()
    with graph.name_scope(name or "while"):
        limit = None if maximum_iterations is None else convert(maximum_iterations)
        first = pack_like(loop_vars, [convert(one) for one in flatten(loop_vars)])
        starts: list[Tensor] = flatten(first)
        inside = Region(graph.region)
        with graph.recording(inside):
            flat = [_loop_variable(one) for one in starts]
            structured = pack_like(first, flat)
            arguments = structured if isinstance(structured, list | tuple) else [structured]
            check = convert(cond(*arguments), bool_)
            returned = body(*arguments)
            if isinstance(returned, list) and len(starts) == 1 and len(returned) != 1:
                returned = [returned]
            nexts = [convert(one) for one in flatten(returned)]
        if [one.dtype for one in nexts] != [one.dtype for one in starts]:
            raise ValueError(
                "The loop's body must return tensors of the dtypes of loop_vars: "
                f"{[one.dtype.name for one in starts]}, got {[one.dtype.name for one in nexts]} (at {user_line()})"
            )
        op = _looping(inside, flat, check, nexts, starts, limit, back_prop, growing(first))
    if len(op.outputs) == 1 and not return_same_structure:
        return op.outputs[0]
    return pack_like(first, op.outputs)


def _loop_variable(start: Tensor) -> Tensor:
    def compute() -> Any:
        raise RuntimeError("A loop variable has a value only inside its loop.")

    found: Tensor = record(
        "LoopVariable", compute, dtypes=[start.dtype], shapes=[start.shape], name="Identity"
    ).outputs[0]
    return found


def _looping(
    inside: Region,
    variables: Sequence[Tensor],
    check: Tensor,
    nexts: Sequence[Tensor],
    starts: Sequence[Tensor],
    limit: Tensor | None,
    back_prop: bool,
    grow: dict[int, int],
) -> Operation:
    captured = [tensor for tensor in capture(inside, [check, *nexts]) if tensor not in variables]
    given = [*variables, *captured]
    judge = region_function(inside, [check], given)
    step = region_function(inside, nexts, given)
    reads, writes = _changed(inside)
    names = list(dict.fromkeys(v.op_name for v in (*reads, *writes)))
    counted = _counted(inside, variables, check, nexts)
    measured = _counted(inside, variables, check, nexts, [variables[i] for i in grow.values()]) if grow else None

    def compute(frame: Frame, *values: Any) -> list[Any]:
        most = None if limit is None else values[-1]
        values = values[: len(values) - (limit is not None)]
        begin, constants = values[: len(starts)], values[len(starts) :]
        state = {name: jnp.asarray(frame.state[name]) for name in names}

        def continues(carry: Any, fixed: Sequence[Any]) -> Any:
            return judge(carry[1], None, [*carry[0], *fixed])[0][0]

        def once(carry: Any, fixed: Sequence[Any], number: Any) -> Any:
            keys = None if frame.keys is None else frame.keys.round(number)
            found, after = step(carry[1], keys, [*carry[0], *fixed])
            typed = [
                jnp.asarray(v, start.dtype.numpy).astype(start.dtype.numpy)
                for v, start in zip(found, starts, strict=True)
            ]
            return typed, {name: jnp.asarray(after[name]) for name in names}

        rounds = (counted(begin, constants, most) or (None,))[0]
        first = [jnp.asarray(v, start.dtype.numpy) for v, start in zip(begin, starts, strict=True)]
        lengths: dict[int, Any] = {}
        if measured is not None:
            _, last = measured(begin, constants, most) or (None, {})
            lengths = {i: last[variables[i]] for i in grow.values() if variables[i] in last}
            for held, length in grow.items():
                first[held] = with_room(first[held], _room(lengths.get(length), begin[length], most))
        first = list(allocated(first, lambda values: once((list(values), state), constants, jnp.int32(0))[0]))
        found, after = run_loop(
            continues, once, (first, state), list(constants), rounds=rounds, most=most, differentiable=back_prop
        )
        frame.state.update({v.op_name: after[v.op_name] for v in writes})
        return [lengths.get(i, one) for i, one in enumerate(found)]

    return record(
        "While",
        compute,
        [*starts, *captured, *([limit] if limit is not None else [])],
        count=len(starts),
        dtypes=[one.dtype for one in starts],
        shapes=[a.shape if a.shape == b.shape else None for a, b in zip(starts, nexts, strict=True)],
        stateful=True,
        reads=reads,
        writes=writes,
        name="Exit",
        attributes={"regions": (inside,)},
    )


def _room(length: Any, before: Any, most: Any) -> int:
    """How many elements of a `TensorArray` that grows in a loop there must be room for."""
    if length is not None:
        return int(length)
    known = [one for one in (before, most) if one is not None and not isinstance(one, jax.Array | jax.core.Tracer)]
    if len(known) < 2:
        raise ValueError(
            "a TensorArray grows in a loop whose number of iterations depends on computed values: pass size= or "
            "maximum_iterations=."
        )
    return int(known[0]) + int(known[1])


def _counted(
    inside: Region, variables: Sequence[Tensor], check: Tensor, nexts: Sequence[Tensor], also: Sequence[Tensor] = ()
) -> Callable[[Sequence[Any], Sequence[Any], Any], tuple[int, dict[Tensor, Any]] | None]:
    """Return a function that counts a loop's iterations, if its condition depends on constants only.

    It runs only this part of the loop, in NumPy, while the rest is traced. It also gives the last values of the
    variables that this part looks at, to which others may be added.
    """
    captured = capture(inside, [check, *nexts])
    captured = [tensor for tensor in captured if tensor not in variables]
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
        except (KeyError, RuntimeError, TypeError, OpError):
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
