"""Grouping and branches. `cond` becomes JAX's, and can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import array
from trainband.compat.ops.arrays import is_computed
from trainband.compat.ops.dtypes import bool_, string
from trainband.compat.tf1.graphs.graph import Graph, Operation, Region, Tensor, get_default_graph
from trainband.compat.tf1.graphs.guess import in_common
from trainband.compat.tf1.graphs.lowering import Frame, has, needed_operations
from trainband.compat.tf1.graphs.nest import flatten, pack_like
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.region import Body, Function, done_before, is_pure, read_before, state_of
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.recorder import recorded


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
    """Return the same tensors, none of which is available before all are.

    Raises:
      ValueError: all are `None`.
    """
    graph = get_default_graph()
    known = [one for one in tensors if one is not None]
    if not known:
        raise ValueError(f"tuple() must have at least one Tensor, got {tensors}.")
    with graph.name_scope(name or "tuple"), graph.control_dependencies([*known, *(control_inputs or [])]):
        return [
            one if one is None else no_op("group_deps") if isinstance(one, Operation) else recorded(array.identity)(one)
            for one in tensors
        ]


def with_dependencies(dependencies: Sequence[Any], output: Any, name: str | None = None) -> Any:
    """Return a tensor that is available only when some operations are done."""
    with get_default_graph().control_dependencies(dependencies):
        return recorded(array.identity)(output, name)


def _recorded(graph: Graph, function: Callable[[], Any], *, done: bool) -> tuple[Region, Any]:
    region = Region(graph.region)
    with graph.recording(region):
        result = function()
        if result is None:
            raise ValueError(f"A branch must return something (at {user_line()}).")
        outputs = pack_like(result, [_as_output(one, done) for one in flatten(result)])
    return region, outputs


def _as_output(value: Any, done: bool) -> Any:
    """Convert an output to a tensor; an operation becomes `done` when it is done."""
    if isinstance(value, Operation):
        return with_dependencies([value], np.bool_(done))
    return convert(value)


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """Record one of two branches, chosen by a condition at run time. Without `strict`, a list of one is that one.

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
        on_true, yes = _recorded(graph, first, done=True)
        on_false, no = _recorded(graph, second, done=False)
        outputs = list(zip(flatten(yes), flatten(no), strict=False))
        if len(flatten(yes)) != len(flatten(no)):
            raise ValueError(f"true_fn and false_fn must return the same number of tensors (at {user_line()}).")
        for a, b in outputs:
            if a.dtype != b.dtype:
                raise ValueError(
                    f"Outputs of true_fn and false_fn must have the same type(s). Received {a.dtype.name} from true_fn "
                    f"and {b.dtype.name} from false_fn. (at {user_line()})"
                )
        merged: dict[int, Tensor] = {}
        for together in _with_common_effects((on_true, on_false), outputs):
            op = record_branches(chosen, (on_true, on_false), [outputs[i] for i in together])
            merged.update(zip(together, op.outputs, strict=True))
    found = pack_like(yes, [merged[i] for i in range(len(outputs))])
    return found[0] if not strict and isinstance(found, list | tuple) and len(found) == 1 else found


def _with_common_effects(regions: Sequence[Region], outputs: Sequence[tuple[Tensor, Tensor]]) -> list[list[int]]:
    """The numbers of the outputs, with those in one list that need the same effect.

    So a run performs only the effects that what it fetches needs, and each of them once.
    """
    plain: list[int] = []
    groups: list[tuple[set[Operation], list[int]]] = []
    for i, pair in enumerate(outputs):
        effects = {
            op
            for region, output in zip(regions, pair, strict=True)
            if region.contains(output.op)
            for op in needed_operations([output.op], (), region)
            if op.writes or has(op, "effect")
        }
        if not effects:
            plain.append(i)
            continue
        common = [group for group in groups if group[0] & effects]
        groups = [group for group in groups if group not in common]
        groups.append((effects.union(*(one for one, _ in common)), [*(n for _, some in common for n in some), i]))
    return sorted(filter(None, [plain, *(sorted(some) for _, some in groups)]))


def record_branches(
    pred: Tensor, regions: tuple[Region, Region], outputs: Sequence[tuple[Tensor, Tensor]], name: str = "Merge"
) -> Operation:
    """Record the choice between two regions; the outputs of both are in pairs."""
    again = {"pred": pred, "regions": regions, "outputs": outputs}
    bodies = [Body(region, [pair[i] for pair in outputs]) for i, region in enumerate(regions)]
    given = list(dict.fromkeys(tensor for body in bodies for tensor in body.captured))
    early = read_before(bodies, [pred.op])
    functions = [body.function(given) for body in bodies]
    reads, writes = state_of(bodies, always=True)
    names = list(dict.fromkeys(v.op_name for v in (*reads, *writes)))
    held = [v.op_name for v in reads]
    everything = [*given, *early.values()]
    numeric = [i for i, tensor in enumerate(everything) if tensor.dtype != string]

    def compute(frame: Frame, chosen: Any, *values: Any) -> list[Any]:
        def branch(body: Body, function: Function) -> Callable[..., Any]:
            def run(arguments: Sequence[Any], state: dict[str, Any]) -> Any:
                whole = list(values)
                for i, value in zip(passed, arguments, strict=True):
                    whole[i] = value
                known = dict(zip(early, whole[len(given) :], strict=True))
                found, after = function(
                    state, frame.keys, [*whole[: len(given)], *(known[name] for name in body.hoisted)]
                )
                typed = [
                    v if pair[0].dtype == string else jnp.asarray(v, pair[0].dtype.numpy)
                    for v, pair in zip(found, outputs, strict=True)
                ]
                return typed, {name: jnp.asarray(after[name]) for name in (*names, *checked)}

            return run

        checked = frame.checked()
        state = {name: jnp.asarray(frame.state[name]) for name in held} | checked
        branches = [branch(body, function) for body, function in zip(bodies, functions, strict=True)]
        passed = [i for i in numeric if is_computed(values[i])]  # what is known stays known inside
        if isinstance(chosen, np.ndarray | np.generic | bool):
            found, after = branches[0 if chosen else 1]([values[i] for i in passed], state)
        else:
            arguments = [values[i] for i in passed]
            found, after = jax.lax.cond(chosen, *branches, arguments, state)
        frame.state.update({name: after[name] for name in (*(v.op_name for v in writes), *checked)})
        return list(found)

    return record(
        "If",
        compute,
        [pred, *everything],
        count=len(outputs),
        dtypes=[a.dtype for a, _ in outputs],
        shapes=[in_common([a.shape, b.shape]) for a, b in outputs],
        stateful=True,
        control_inputs=done_before(bodies),
        reads=reads,
        writes=writes,
        name=name,
        attributes={"regions": regions, "pure": is_pure(bodies), "again": ("If", again)},
    )
