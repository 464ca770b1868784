"""Variable scopes: `get_variable`, sharing by name, and the defaults that a scope sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from trainband.compat.ops.dtypes import as_dtype, float32
from trainband.compat.ops.indexing import slice_
from trainband.compat.ops.shapes import TensorShape, dims_of
from trainband.compat.tf1.graphs.graph import Graph, Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert, is_tensor
from trainband.compat.tf1.graphs.save_slice import SaveSliceInfo
from trainband.compat.tf1.graphs.variable import PartitionedVariable, Variable
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf1.operations.initializers import GlorotUniform, Zeros
from trainband.compat.tf1.operations.partitioners import PartitionInfo
from trainband.compat.tf1.operations.recorder import recorded


class _AutoReuse:
    """Share the variable of a name if it exists, else create it."""

    def __repr__(self) -> str:
        return "tf.AUTO_REUSE"

    def __bool__(self) -> bool:
        return True


AUTO_REUSE = _AutoReuse()


def no_regularizer(_: Any) -> None:
    """No loss: in place of the regularizer of an outer scope."""
    return


@dataclass(eq=False)
class VariableScope:
    """An open scope.

    Attributes:
      name: `a/b`.
      reuse: whether variables must exist already; `AUTO_REUSE` allows both.
    """

    name: str = ""
    reuse: Any = False
    initializer: Any = None
    regularizer: Any = None
    partitioner: Any = None
    dtype: Any = float32
    constraint: Any = None
    custom_getter: Any = None
    counts: dict[str, int] = field(default_factory=dict)
    original_name_scope: str = ""

    def reuse_variables(self) -> None:
        """From now on, variables in it must exist already."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """What variables in it begin with."""
        self.initializer = initializer

    def global_variables(self) -> list[Any]:
        """The variables in it."""
        return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, f"{self.name}/")

    def trainable_variables(self) -> list[Any]:
        """The variables in it that are trained."""
        return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, f"{self.name}/")


def get_variable_scope() -> VariableScope:
    """The scope that is open."""
    graph = get_default_graph()
    if graph.variable_scope is None:
        graph.variable_scope = VariableScope()
    scope: VariableScope = graph.variable_scope
    return scope


@contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    values: Any = None,  # noqa: ARG001 - TensorFlow uses it to find the graph
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,  # noqa: ARG001 - there are no copies to place
    partitioner: Any = None,
    custom_getter: Callable[..., Any] | None = None,
    reuse: Any = None,
    dtype: Any = None,
    use_resource: Any = None,  # noqa: ARG001 - there is one kind only
    constraint: Any = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Variables made inside are named `scope/name`, and so are operations.

    Raises:
      ValueError: neither a name nor a default one is given, or sharing is asked for a scope without a name.
    """
    graph, outer = get_default_graph(), get_variable_scope()
    if name_or_scope is None and default_name is None:
        raise ValueError("If default_name is None then name_or_scope is required")
    if isinstance(name_or_scope, VariableScope):
        full, last = name_or_scope.name, name_or_scope.name.rpartition("/")[2]
        base = name_or_scope
    else:
        if name_or_scope is None and reuse:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        last = _unique(outer, str(default_name)) if name_or_scope is None else str(name_or_scope)
        outer.counts[last] = outer.counts.get(last, 0) + (name_or_scope is not None)
        full, base = "/".join(filter(None, (outer.name, last))), outer
    scope = VariableScope(
        name=full,
        reuse=reuse if reuse is not None else (base.reuse or outer.reuse),
        initializer=initializer or base.initializer,
        regularizer=regularizer or base.regularizer,
        partitioner=partitioner or base.partitioner,
        dtype=dtype or base.dtype,
        constraint=constraint or base.constraint,
        custom_getter=custom_getter or base.custom_getter,
        counts=dict(base.counts) if base is name_or_scope else {},
        original_name_scope=base.original_name_scope if base is name_or_scope else "",
    )
    graph.variable_scope = scope
    try:
        if auxiliary_name_scope and last:
            with graph.name_scope(last) as opened:
                if base is not name_or_scope:
                    scope.original_name_scope = opened
                yield scope
        else:
            yield scope
    finally:
        graph.variable_scope = outer
        if base is not name_or_scope:
            scope.counts.clear()  # default names inside start anew when it is opened again


def _unique(outer: VariableScope, name: str) -> str:
    count = outer.counts.get(name, 0)
    outer.counts[name] = count + 1
    return name if count == 0 else f"{name}_{count}"


def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,  # noqa: ARG001 - there are no copies to place
    partitioner: Callable[..., Sequence[int]] | None = None,
    validate_shape: bool = True,
    use_resource: Any = None,  # noqa: ARG001 - there is one kind only
    custom_getter: Callable[..., Any] | None = None,
    constraint: Any = None,
    synchronization: Any = None,  # noqa: ARG001
    aggregation: Any = None,  # noqa: ARG001
) -> Any:
    """Return the variable of a name in the open scope: a new one, or an existing one if the scope reuses.

    Raises:
      ValueError: it exists and must not be shared, or it does not exist and must be; or its shape or
        dtype differs.
    """
    scope = get_variable_scope()
    settings = _Wanted(
        full="/".join(filter(None, (scope.name, name))),
        dtype=as_dtype(dtype or (initializer.dtype if isinstance(initializer, Tensor) else scope.dtype)),
        shape=None if shape is None else TensorShape(shape),
        initializer=initializer if initializer is not None else scope.initializer,
        trainable=trainable,
        collections=collections,
        validate_shape=validate_shape,
        constraint=constraint or scope.constraint,
    )
    regularize = regularizer or scope.regularizer
    cut = partitioner or scope.partitioner
    getter = custom_getter or scope.custom_getter

    def make(full: str | None = None, *_: Any, **changes: Any) -> Any:
        known = {key: value for key, value in changes.items() if key in ("initializer", "trainable", "collections")}
        wanted = replace(settings, full=full or settings.full, **known)
        return _shared_or_new(get_default_graph(), scope, wanted, regularize, cut)

    if getter is None:
        return make()
    return getter(
        make,
        settings.full,
        shape=shape,
        dtype=settings.dtype,
        initializer=settings.initializer,
        trainable=trainable,
        collections=collections,
        reuse=scope.reuse,
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What `get_variable` is asked for."""

    full: str
    dtype: Any
    shape: TensorShape | None
    initializer: Any
    trainable: bool | None
    collections: Sequence[str] | None
    validate_shape: bool
    constraint: Any


def _shared_or_new(graph: Graph, scope: VariableScope, wanted: _Wanted, regularize: Any, cut: Any) -> Any:
    there = graph.shared.get(wanted.full)
    if there is not None:
        if not scope.reuse:
            first = next(iter(getattr(there, "parts", [there])))
            raise ValueError(
                f"Variable {wanted.full} already exists, disallowed. Did you mean to set reuse=True or "
                f"reuse=tf.AUTO_REUSE in VarScope? Originally defined at: {first.op.where}; now at {user_line()}"
            )
        if wanted.shape is not None and not there.shape.is_compatible_with(wanted.shape):
            raise ValueError(
                f"Trying to share variable {wanted.full}, but specified shape {wanted.shape} and found shape "
                f"{there.shape}. (at {user_line()})"
            )
        if there.dtype != wanted.dtype:
            raise ValueError(
                f"Trying to share variable {wanted.full}, but specified dtype {wanted.dtype.name} and found dtype "
                f"{there.dtype.name}. (at {user_line()})"
            )
        return there
    if scope.reuse and scope.reuse is not AUTO_REUSE:
        raise ValueError(
            f"Variable {wanted.full} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            f"reuse=tf.AUTO_REUSE in VarScope? (at {user_line()})"
        )
    made = _partitioned(wanted, cut) if cut is not None else _plain(wanted, wanted.full, wanted.shape, None)
    graph.shared[wanted.full] = made
    if regularize is not None:
        before, graph.region = graph.region, None  # a variable's loss belongs to no loop's body either
        try:
            with graph.control_dependencies(None), graph.name_scope(f"{wanted.full}/Regularizer/"):
                loss = regularize(made)
        finally:
            graph.region = before
        if loss is not None:
            graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return made


def _plain(wanted: _Wanted, name: str, shape: TensorShape | None, info: PartitionInfo | None) -> Variable:
    initializer = wanted.initializer
    if initializer is None:
        initializer = GlorotUniform() if wanted.dtype.is_floating else Zeros(wanted.dtype)
    if isinstance(initializer, type):
        initializer = initializer()
    is_value = not callable(initializer)
    if shape is None and not is_value:
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was <unknown>.")
    if shape is not None and not is_value and not shape.is_fully_defined() and wanted.validate_shape:
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}.")

    def first_value() -> Any:
        if is_value:
            return initializer
        return initializer(list(dims_of(shape) or ()), **_taken(initializer, dtype=wanted.dtype, partition_info=info))

    return Variable(
        first_value,
        trainable=True if wanted.trainable is None else wanted.trainable,
        collections=wanted.collections,
        validate_shape=wanted.validate_shape,
        dtype=wanted.dtype,
        constraint=wanted.constraint,
        exact_name=name,
    )


def _taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of some arguments that a function takes."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # one that is not written in Python
        return {}
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _partitioned(wanted: _Wanted, cut: Callable[..., Sequence[int]]) -> Any:
    whole = wanted.shape
    if whole is None and isinstance(wanted.initializer, Tensor):
        whole = wanted.initializer.shape
    if whole is None or not whole.is_fully_defined():
        raise ValueError(f"the shape of a partitioned variable ({wanted.full}) must be known, got {whole}.")
    counts = list(cut(shape=whole, dtype=wanted.dtype))
    axes = [axis for axis, count in enumerate(counts) if count > 1]
    if len(axes) > 1:
        raise ValueError(f"A variable can be split along one axis only, but {wanted.full} would be split by {counts}.")
    axis, count = (axes[0], counts[axes[0]]) if axes else (0, 1)
    sizes = [size or 0 for size in whole.sizes or ()]
    each, more = divmod(sizes[axis], count)
    parts, start = [], 0
    for number in range(count):
        length = each + (number < more)
        shape = [*sizes[:axis], length, *sizes[axis + 1 :]]
        begin = [start if i == axis else 0 for i in range(len(sizes))]
        info = PartitionInfo(tuple(sizes), tuple(begin))
        one = wanted
        if wanted.initializer is not None and not callable(wanted.initializer):
            whole_value = convert(wanted.initializer, None if is_tensor(wanted.initializer) else wanted.dtype)
            one = replace(wanted, initializer=recorded(slice_)(whole_value, begin, shape), shape=None)
        part = _plain(one, f"{wanted.full}/part_{number}", TensorShape(shape) if one is wanted else None, info)
        part.save_slice = SaveSliceInfo(wanted.full, sizes, begin, shape)
        parts.append(part)
        start += length
    return PartitionedVariable(wanted.full, whole, wanted.dtype, parts, axis)


def create_partitioned_variables(
    shape: Any,
    slicing: Sequence[int],
    initializer: Any,
    dtype: Any = float32,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    name: str | None = None,
    reuse: Any = None,
) -> list[Variable]:
    """The parts of a variable that is split into as many along each axis as `slicing` says.

    Raises:
      ValueError: there are not as many numbers as axes, or more than one is greater than 1.
    """
    sizes = [int(size) for size in shape]
    counts = [int(count) for count in slicing]
    if len(sizes) != len(counts):
        raise ValueError(f"The 'shape' and 'slicing' of a partitioned variable must have the length: {sizes}, {counts}")
    if any(count < 1 or count > size for size, count in zip(sizes, counts, strict=True)):
        raise ValueError(f"A variable of the shape {sizes} cannot be split into {counts} parts.")
    if sum(count > 1 for count in counts) > 1:
        raise ValueError(f"Can only slice a variable along one dimension: {sizes}, {counts}")
    dtype = initializer.dtype if isinstance(initializer, Tensor) else dtype
    with variable_scope(name, "PartitionedVariable", reuse=reuse):
        found = get_variable(
            "",
            sizes,
            dtype,
            initializer,
            trainable=trainable,
            collections=collections,
            partitioner=lambda **_: counts,
        )
    return list(found)


def get_local_variable(name: str, *args: Any, **more: Any) -> Any:
    """Like `get_variable`, for a variable that each process keeps to itself."""
    more["trainable"] = False
    more["collections"] = [*(more.get("collections") or []), GraphKeys.LOCAL_VARIABLES]
    return get_variable(name, *args, **more)
