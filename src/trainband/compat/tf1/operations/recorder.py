"""The recorder, which records any operation of the table into a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.arrays import ArgumentError, limit_of
from trainband.compat.ops.binding import Late, converted, flattened, put_back
from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.ops.signature import V1_PARAMETERS, Signature
from trainband.compat.ops.table import Op, op_of
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.infer import UNKNOWN, Probe
from trainband.compat.tf1.graphs.keys import combined_seed
from trainband.compat.tf1.graphs.record import convert, is_tensor, known_value, record, record_tensor
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.graphs.where import user_line


class _GraphTensors:
    """Tensors of a graph: see `binding.Tensors`."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor, a variable, or rows of one."""
        return is_tensor(value)

    def convert(self, value: Any, dtype: DType | None) -> Tensor:
        """Convert a value to a tensor."""
        return convert(value, dtype)

    def known(self, value: Any, what: str) -> Any:  # noqa: ARG002
        """Return the value of a tensor that follows from constants; any other must be known when a run is compiled."""
        tensor = convert(value)
        found = known_value(tensor)
        return Late(tensor) if found is None else found


_TENSORS = _GraphTensors()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a tensor while recording: sizes, of which some may be `None`, and perhaps its value."""

    shape: tuple[int | None, ...] | None
    dtype: DType
    value: np.ndarray[Any, Any] | None


@functools.cache
def recorder(op: Op) -> Callable[..., Any]:
    """Return the function that records an operation, with TensorFlow 1's signature."""
    signature = Signature.parse(op, op.v1 or V1_PARAMETERS.get(op.name, ""))

    def record_it(*arguments: Any, **keywords: Any) -> Any:
        values, others = signature.bind(arguments, keywords)
        return record_op(op, values, others.get("name"), others.get("seed"))

    record_it.__name__ = record_it.__qualname__ = op.name
    record_it.__doc__ = op.function.__doc__
    record_it.__signature__ = signature.shown  # type: ignore[attr-defined]
    return record_it


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the recorder of the operation that a function of `compat.ops` defines."""
    return recorder(op_of(function))


def record_op(op: Op, values: Mapping[str, Any], name: str | None = None, seed: int | None = None) -> Any:
    """Record an operation, with arguments by name. Returns a tensor, or several as the table says.

    Raises:
      TypeError, ValueError: the operation does not work on such arguments.
      RuntimeError: the graph is finalized.
    """
    for parameter in op.by_row:
        rows = values[parameter]
        if isinstance(rows, IndexedSlices):
            result = record_op(op, {**values, parameter: rows.values}, name, seed)
            return IndexedSlices(result, rows.indices, rows.dense_shape)
        if isinstance(rows, SparseTensor):
            result = record_op(op, {**values, parameter: rows.values}, name, seed)
            return SparseTensor(rows.indices, result, rows.dense_shape)
    try:
        arguments = converted(op, _with_limits(op, values), _TENSORS)
        seen = {one: _known_of(value) for one, value in arguments.items()}
        if op.unchanged is not None and op.unchanged(**seen):
            return arguments[op.tensors[0]]
        count = op.outputs if isinstance(op.outputs, int) else op.outputs(**seen)
        unsized = None if op.unsized is None else op.unsized(**seen)
        made = record_converted(op, arguments, count, name or op.title or None, seed, unsized)
    except (ArgumentError, TypeError) as exc:
        kind = ValueError if isinstance(exc, ArgumentError) else TypeError
        if "(at " in str(exc):
            raise
        text = str(exc)
        for number in UNKNOWN:
            text = text.replace(str(number), "?")
        raise kind(f"{text} (at {user_line()})") from exc
    if op.ranked_by and made.outputs[0].shape.sizes is None:
        made.outputs[0].set_shape(_of_rank(op, arguments[op.ranked_by]))
    if op.outputs == 1:
        return made.outputs[0]
    return tuple(made.outputs) if isinstance(op.outputs, int) else made.outputs


def _with_limits(op: Op, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments with the counts that are left out, where they follow from computed numbers."""
    found = dict(values)
    for parameter, sources in op.limits.items():
        if found[parameter] is not None:
            continue
        given = [values[source] for source in sources]
        arrays = [convert(one) for each in given for one in (each if isinstance(each, list | tuple) else [each])]
        if any(known_value(one) is None for one in arrays):
            found[parameter] = record_tensor("Max", limit_of, arrays, folds=True)
    return found


def _known_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_known_of(one) for one in value]
    return Known(value.shape.sizes, value.dtype, known_value(value)) if isinstance(value, Tensor) else value


def record_converted(
    op: Op, arguments: Mapping[str, Any], count: int, name: str | None, seed: int | None, unsized: Any = None
) -> Operation:
    """Record an operation with arguments that are converted already."""
    inputs, layout = flattened(op, arguments)
    settings = {one: value for one, value in arguments.items() if one not in layout}
    attributes: dict[str, Any] = {"op": op.key, "arguments": settings, "layout": layout, "flat": op.flat}
    attributes["sized"] = _sizes(op, arguments)
    if unsized is not None:
        attributes["unsized"] = [(dtype, TensorShape(shape)) for dtype, shape in unsized]

    def function(key: Any, arrays: Sequence[Any]) -> Any:
        result = op.call(put_back(settings, layout, arrays), key)
        return result if op.outputs == 1 or count != 1 else result[0]

    if not op.random:
        made = record(
            op.type,
            lambda *arrays: function(None, arrays),
            inputs,
            name=name,
            count=count,
            folds=op.folds,
            attributes=attributes,
        )
        if op.of_shape:
            _note_value(op, made.outputs[0], arguments)
        return made
    graph = get_default_graph()
    attributes["seed"] = combined_seed(graph.seed, seed, len(graph.operations))

    def draw(frame: Any, *arrays: Any) -> tuple[Any]:
        return (function(frame.keys.of(attributes["seed"], made.number), arrays),)

    made = record(
        op.type,
        draw,
        inputs,
        name=name,
        stateful=True,
        attributes=attributes,
        **_kind_of_draw(op, arguments, inputs, layout, function),
    )
    like = inputs[0].probes if op.keeps_shape else None
    if like is not None:  # unknown sizes stay equal to those of the input
        first, second = (Probe(probe.shape, probe.dtype) for probe in like)
        made.outputs[0].probes = (first, first if like[0] is like[1] else second)
    return made


def _sizes(op: Op, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The arguments that must be known when the operation is compiled, and are computed from values."""
    given = [one.tensor for one in arguments.values() if isinstance(one, Late)]
    given += [arguments[name] for name in op.shapes if isinstance(arguments[name], Tensor)]
    return [one for one in given if one.probes is None or one.probes[0].value is None]


def _kind_of_draw(
    op: Op,
    arguments: Mapping[str, Any],
    inputs: Sequence[Tensor],
    layout: Mapping[str, int | None],
    function: Callable[[Any, Sequence[Any]], Any],
) -> dict[str, Any]:
    """Return arguments of `record` for a random operation. A shape that is an argument needs no tracing."""
    dtype = next((arguments[one] for one in ("dtype", "output_dtype") if one in arguments), None)
    found: dict[str, Any] = {"dtypes": [inputs[0].dtype if dtype is None else as_dtype(dtype)]}
    if op.keeps_shape:
        found["shapes"] = [inputs[0].shape]
    elif "shape" in op.shapes:
        found["shapes"] = [_shape_of_value(arguments["shape"])]
    place = list(layout).index("shape") if "shape" in op.shapes else None

    def abstract(*arrays: Any) -> tuple[Any]:
        # Arguments are refused whatever the shape is, and JAX traces a scalar only once.
        some = [np.zeros(0, np.int32) if i == place else array for i, array in enumerate(arrays)]
        return (function(jax.random.key(0), some),)

    return {**found, "abstract": abstract}


def _of_rank(op: Op, tensor: Tensor) -> TensorShape:
    """What is known of a result whose number of axes a shape, or an array, says."""
    if op.ranked_by in op.shapes:
        return partial_shape(tensor)
    return TensorShape(None if tensor.shape.sizes is None else [None] * len(tensor.shape.sizes))


def partial_shape(tensor: Tensor) -> TensorShape:
    """What is known of the shape that a tensor gives, as a vector of sizes."""
    known = known_value(tensor)
    if known is not None:
        return TensorShape([None if size < 0 else int(size) for size in known.reshape(-1)])
    if tensor.op.type == "Pack" and tensor.shape.ndims == 1:
        sizes = [known_value(one) for one in tensor.op.inputs]
        return TensorShape([None if size is None or int(size) < 0 else int(size) for size in sizes])
    count = tensor.shape.sizes
    return TensorShape(None if count is None or len(count) != 1 or count[0] is None else [None] * count[0])


def _shape_of_value(tensor: Tensor) -> TensorShape:
    """Return what is known about a shape that is given as a tensor."""
    probes = tensor.probes
    if probes is None or probes[0].value is None or probes[1].value is None:
        return partial_shape(tensor)
    first, second = np.ravel(probes[0].value), np.ravel(probes[1].value)
    return TensorShape([int(a) if a == b else None for a, b in zip(first, second, strict=True)])


def _note_value(op: Op, result: Tensor, arguments: Mapping[str, Any]) -> None:
    """Set the value of an operation on a shape, which is known if the sizes are."""
    tensor: Tensor = arguments[op.tensors[0]]
    if tensor.probes is None:
        return
    shapes = [jax.ShapeDtypeStruct(probe.shape, probe.dtype) for probe in tensor.probes]
    values = [np.asarray(op.call({**arguments, op.tensors[0]: shape})) for shape in shapes]
    first, second = (Probe(value.shape, value.dtype, value) for value in values)
    result.probes = (first, first if tensor.probes[0] is tensor.probes[1] else second)
