"""Gradients: derivatives of some tensors by others, as an operation of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops import array
from trainband.compat.ops.arrays import axis_of, conjugate
from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.lowering import FAILED, Frame, depends_on
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.operators import slice_item
from trainband.compat.tf1.operations.recorder import recorded


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor or variable by which a gradient is taken.

    Attributes:
      tensors: whose derivatives add up to its own: a variable's reads, or what is gathered from them.
      gathers: whether the tensors are rows that were gathered.
    """

    tensors: tuple[Tensor, ...]
    gathers: bool
    like: Any


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,  # noqa: ARG001 - one program does it all
    gate_gradients: Any = None,  # noqa: ARG001
    aggregation_method: Any = None,  # noqa: ARG001
    stop_gradients: Any = None,
    unconnected_gradients: Any = "none",
) -> list[Any]:
    """The derivatives of the sum of all `ys` by each of `xs`; `None` where nothing connects them.

    The derivative by a variable of which only rows are looked up is an `IndexedSlices` of those rows.

    Raises:
      NotImplementedError: a derivative goes through a loop that both reads and assigns the variable.
    """
    targets = [convert(y) for y in _listed(ys)]
    wanted = _listed(xs)
    flat = [part for x in wanted for part in (x.parts if isinstance(x, PartitionedVariable) else [x])]
    given = [None] * len(targets) if grad_ys is None else _listed(grad_ys)
    stops = {convert(one) for one in _listed(stop_gradients)} if stop_gradients is not None else set()
    found = _recorded(targets, flat, given, stops, name)
    if str(getattr(unconnected_gradients, "value", unconnected_gradients)).lower() == "zero":
        found = [recorded(array.zeros_like)(x) if one is None else one for x, one in zip(flat, found, strict=True)]
    if len(flat) == len(wanted):
        return found
    return _of_wholes(wanted, found)


def _of_wholes(wanted: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """The gradients of partitioned variables, from those of their parts."""
    rest, result = iter(found), []
    for x in wanted:
        if isinstance(x, PartitionedVariable):
            parts = [next(rest) for _ in x.parts]
            result.append(
                None if any(p is None for p in parts) else recorded(array.concat)([convert(p) for p in parts], x.axis)
            )
        else:
            result.append(next(rest))
    return result


def _recorded(
    targets: Sequence[Tensor], xs: Sequence[Any], given: Sequence[Any], stops: set[Tensor], name: str
) -> list[Any]:
    graph = targets[0].graph if targets else get_default_graph()
    ancestors = _ancestors(targets)
    sources = [_source(x, ancestors) for x in xs]
    roots = {tensor for source in sources for tensor in source.tensors if tensor.dtype.is_differentiable}
    inner = depends_on(roots, targets, stops) if roots else set()
    reached = _reached(roots, inner, targets)
    connected = [any(tensor in reached for tensor in source.tensors) for source in sources]
    cotangents = [None if one is None else convert(one) for one in given]
    with graph.name_scope(name):
        if not any(connected):
            return [None] * len(xs)
        live = [source for source, is_live in zip(sources, connected, strict=True) if is_live]
        op = _operation(targets, live, cotangents, stops, inner)
    results: list[Any] = []
    rest = iter(op.outputs)
    for source, is_live in zip(sources, connected, strict=True):
        if not is_live:
            results.append(None)
        elif source.gathers:
            values, indices = next(rest), next(rest)
            results.append(IndexedSlices(values, indices, source.like.shape))
        else:
            results.append(next(rest))
    return results


def _ancestors(targets: Sequence[Tensor]) -> set[Operation]:
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in targets]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def _reached(roots: set[Tensor], inner: set[Operation], targets: Sequence[Tensor]) -> set[Tensor]:
    """The roots that some target depends on."""
    used = {tensor for op in inner for tensor in op.inputs} | set(targets)
    return roots & used


def _source(x: Any, ancestors: set[Operation]) -> _Source:
    if not isinstance(x, Variable):
        return _Source((convert(x),), gathers=False, like=convert(x))
    inside = next((op for op in ancestors if x in op.writes and _reads_inside(op, x)), None)
    if inside is not None:
        raise NotImplementedError(
            f"The derivative by {x.name} goes through {inside.name}, a branch or loop that both reads and assigns it. "
            f"Carry its value as a loop variable instead. (at {user_line()})"
        )
    reads = tuple(
        output
        for op in sorted(ancestors, key=lambda op: op.number)
        if op.attributes.get("variable") is x and not op.writes
        for output in op.outputs
    )
    consumers = [op for op in ancestors if any(tensor in reads for tensor in op.inputs)]
    if consumers and all(_gathers_rows(op) and op.inputs[1] not in reads for op in consumers):
        gathered = sorted(consumers, key=lambda op: op.number)
        return _Source(tuple(op.outputs[0] for op in gathered), gathers=True, like=x)
    return _Source(reads, gathers=False, like=x)


def _reads_inside(op: Operation, x: Variable) -> bool:
    """Whether a region of an operation reads a variable."""
    return any(
        (inner.attributes.get("variable") is x and not inner.writes) or _reads_inside(inner, x)
        for region in op.attributes.get("regions", ())
        for inner in region.operations
    )


def _gathers_rows(op: Operation) -> bool:
    return op.type == "GatherV2" and axis_of(op.attributes["arguments"]["axis"]) == 0


def _operation(
    targets: Sequence[Tensor],
    sources: Sequence[_Source],
    cotangents: Sequence[Tensor | None],
    stops: set[Tensor],
    inner: set[Operation],
) -> Operation:
    roots = list(dict.fromkeys(tensor for source in sources for tensor in source.tensors))
    # A root that is computed from others is computed again, and what the derivative is taken by is added to it.
    leaves = [tensor for tensor in roots if tensor in stops or tensor.op not in inner]
    between = [tensor for tensor in roots if tensor not in stops and tensor.op in inner]
    passed = [output for op in inner for output in op.outputs if output.dtype != string]
    nested = any(op.early for op in inner)  # a derivative inside computes what is a leaf here once more

    def compute(frame: Frame) -> list[Any]:
        # First the roots, as they are here; then everything between them and the targets, as a function of the roots.
        # That is the forward pass, and the rest of this run reuses its values.
        points = [jnp.asarray(frame.value(tensor)) for tensor in leaves]
        halted = {tensor: jax.lax.stop_gradient(frame.value(tensor)) for tensor in stops}
        fed = {tensor: frame.values[tensor] for tensor in passed if tensor in frame.fed}
        absent = _stand_ins(frame, inner) if fed else {}

        def forward(values: Sequence[Any], added: Sequence[Any]) -> tuple[list[Any], tuple[dict[int, Any], Any]]:
            known = {**absent, **halted, **dict(zip(leaves, values, strict=True))}
            more = dict(zip(between, added, strict=False))
            if nested:
                more |= {t: v - jax.lax.stop_gradient(v) for t, v in zip(leaves, values, strict=True)}
            child = frame.child(known, inner, more)
            child.instead = {tensor: jnp.asarray(value) for tensor, value in fed.items()}
            outputs = [child.value(target) for target in targets]
            # Those that are not reached by a derivative are constants of it, and are left out.
            aside = {
                i: child.values[tensor]
                for i, tensor in enumerate(passed)
                if tensor in child.values and tensor not in known
            }
            return [jnp.asarray(one) for one in outputs], (aside, child.state.get(FAILED, 0))

        zeros = _zeros(between, lambda: forward(points, ())[1][0], passed)
        outputs, pull_back, (aside, failed) = jax.vjp(forward, points, zeros, has_aux=True)
        for i, value in aside.items():
            frame.values.setdefault(passed[i], value)
        if FAILED in frame.state and not isinstance(failed, int):
            frame.state[FAILED] = failed
        seeds: list[Any] = [
            jnp.ones_like(output) if cotangent is None else _seed(frame.value(cotangent), output)
            for output, cotangent in zip(outputs, cotangents, strict=True)
        ]
        seeds = [
            np.zeros(output.shape, jax.dtypes.float0) if not jnp.issubdtype(output.dtype, jnp.inexact) else seed
            for output, seed in zip(outputs, seeds, strict=True)
        ]
        by_leaves, by_between = pull_back([conjugate(seed) for seed in seeds])
        found = [conjugate(one) for one in (*by_leaves, *by_between)]
        for tensor in absent:
            holds = jnp.all(jnp.array([jnp.isfinite(one).all() for one in found]))
            frame.check(tensor.op, holds, f"You must feed a value for {tensor.name}: the derivative depends on it.")
        derivatives = dict(zip([*leaves, *between], found, strict=True))
        return _given_back(sources, derivatives, frame)

    dtypes, shapes = [], []
    for source in sources:
        if source.gathers:
            gathers = [tensor.op for tensor in source.tensors]
            row = source.like.shape.as_list()[1:]
            dtypes += [source.like.dtype, gathers[0].inputs[1].dtype]
            shapes += [[None, *row], [None]]
        else:
            dtypes.append(source.like.dtype)
            shapes.append(source.like.shape)
    inputs = list(dict.fromkeys([*targets, *(one for one in cotangents if one is not None), *roots]))
    return record("grad", compute, inputs, count=len(dtypes), dtypes=dtypes, shapes=shapes, early=True, name="grad")


def _seed(value: Any, output: Any) -> Any:
    """What is given as the derivative by an output, in its shape."""
    given = jnp.asarray(value, output.dtype)
    if given.shape != output.shape and given.size == output.size:
        given = given.reshape(output.shape)
    return given * jnp.ones_like(output)


def _zeros(tensors: Sequence[Tensor], values: Callable[[], dict[int, Any]], passed: Sequence[Tensor]) -> list[Any]:
    """Zeros in the shapes of tensors; those that are not known follow from values."""
    if all(tensor.shape.is_fully_defined() for tensor in tensors):
        return [jnp.zeros(tuple(tensor.shape.as_list()), tensor.dtype.numpy) for tensor in tensors]
    found = values()
    return [jnp.zeros_like(found[passed.index(tensor)]) for tensor in tensors]


def _stand_ins(frame: Frame, inner: Collection[Operation]) -> dict[Tensor, Any]:
    """NaN for the inputs that have no value because what follows from them is fed: the derivative may do without."""
    found: dict[Tensor, Any] = {}
    for tensor in dict.fromkeys(tensor for op in inner for tensor in op.inputs if tensor.op not in inner):
        try:
            frame.value(tensor)
        except InvalidArgumentError:
            if not tensor.dtype.is_differentiable or not tensor.shape.is_fully_defined():
                raise
            found[tensor] = jnp.full(tuple(tensor.shape.as_list()), np.nan, tensor.dtype.numpy)
    return found


def _given_back(sources: Sequence[_Source], derivatives: Mapping[Tensor, Any], frame: Frame) -> list[Any]:
    results = list[Any]()
    for source in sources:
        mine = [derivatives[tensor] for tensor in source.tensors]
        if not source.gathers:
            results.append(sum(mine[1:], mine[0]))
            continue
        row = tuple(source.like.shape.as_list()[1:])
        indices = [jnp.ravel(jnp.asarray(frame.value(tensor.op.inputs[1]))) for tensor in source.tensors]
        results.append(jnp.concatenate([one.reshape((-1, *row)) for one in mine]))
        results.append(jnp.concatenate(indices))
    return results


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def hessians(
    ys: Any,
    xs: Any,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,  # noqa: ARG001
    gate_gradients: Any = None,  # noqa: ARG001
    aggregation_method: Any = None,  # noqa: ARG001
) -> list[Any]:
    """The second derivatives by each of `xs`: of the shape of `x`, twice.

    Raises:
      ValueError: the shape of one is not known.
    """
    result = []
    for x in _listed(xs):
        (first,) = gradients(ys, x, name=name)
        shape = convert(x).shape
        if not shape.is_fully_defined():
            raise ValueError(f"hessians() needs tensors of known shapes, got {x}.")
        sizes, flat = shape.as_list(), reshape(convert(first), [-1])
        rows = [convert(gradients(slice_item(flat, i), x, name=name)[0]) for i in range(shape.num_elements() or 0)]
        result.append(reshape(recorded(array.stack)(rows), [*sizes, *sizes]))
    return result
