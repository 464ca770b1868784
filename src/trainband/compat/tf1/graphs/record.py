"""Record an operation, and convert what a script passes into tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from trainband.compat.ops.array import stack
from trainband.compat.ops.arrays import NEEDS_VALUE, ArgumentError
from trainband.compat.ops.dtypes import DType, array_of, as_dtype
from trainband.compat.ops.shapes import Dimension, TensorShape
from trainband.compat.tf1.graphs.graph import Graph, Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.guess import Input, guess
from trainband.compat.tf1.graphs.infer import (
    Probes,
    dtype_of,
    infer,
    infer_by_values,
    probes_of_shape,
    probes_of_value,
    shape_of,
)
from trainband.compat.tf1.graphs.where import user_line

Compute = Callable[..., Any]


def record(
    type_: str,
    compute: Compute,
    inputs: Sequence[Tensor] = (),
    *,
    name: str | None = None,
    count: int = 1,
    dtypes: Sequence[DType] | None = None,
    shapes: Sequence[Any] | None = None,
    value: np.ndarray[Any, Any] | None = None,
    folds: bool = False,
    graph: Graph | None = None,
    abstract: Compute | None = None,
    overridden: bool = False,
    **more: Any,
) -> Operation:
    """Record an operation. Its outputs get the shapes and dtypes that `compute` gives, unless they are passed.

    Args:
      compute: the inputs' values to the output's, or to a sequence of them where `count` is not 1.
      count: how many outputs.
      dtypes, shapes: of the outputs, if they are known beforehand.
      value: of the only output, a constant.
      overridden: whether it has a derivative of the script's own already.
      abstract: what shapes and dtypes are found with, where `compute` takes more than the inputs' values. What it
        raises is left to the run.

    Raises:
      ValueError: the operation does not work on inputs of such shapes.
      RuntimeError: the graph is finalized.
    """
    graph = graph or (inputs[0].graph if inputs else get_default_graph())
    several = (
        compute if count != 1 or more.get("stateful") or more.get("early") else lambda *values: (compute(*values),)
    )
    op = Operation(graph, type_, "", inputs, several, folds=folds, **more)
    op.control_inputs = list(dict.fromkeys([*op.control_inputs, *graph.control_inputs()]))
    probes: list[Probes] = []
    if value is not None:
        probes = [probes_of_value(value)]
        dtypes = dtypes or [as_dtype(value.dtype)]
    elif shapes is not None and dtypes is not None:
        probes = [probes_of_shape(TensorShape(s), d) for s, d in zip(shapes, dtypes, strict=True)]
        if abstract is not None:
            _inferred(op, abstract, inputs, count, lenient=True)  # for what it refuses
    elif count:
        probes, guessed = _inferred(op, abstract or several, inputs, count, lenient=abstract is not None)
        dtypes = dtypes or guessed
    op.name = graph.exact_name(name) if name is not None and name.endswith("/") else graph.unique_name(name or type_)
    for index in range(count):
        known = probes[index] if index < len(probes) else None
        dtype = dtypes[index] if dtypes is not None else dtype_of(known[0]) if known is not None else _common(inputs)
        shape = TensorShape(shapes[index]) if shapes is not None and value is None else shape_of(known)
        if shapes is not None and known is not None and shape.sizes is None:
            shape = shape_of(known)
        op.outputs.append(Tensor(op, index, dtype, shape, known))
    graph.place(op)
    graph.add(op)
    override = None if overridden else graph.override_of(type_)
    return op if override is None else override(op)


def _inferred(
    op: Operation, compute: Compute, inputs: Sequence[Tensor], count: int, *, lenient: bool
) -> tuple[list[Probes], list[DType] | None]:
    """(the probes of the outputs, where there are none their dtypes)."""
    known = [tensor.probes for tensor in inputs]
    unsized = op.attributes.get("unsized")
    refusal: Exception | None = None
    if unsized is not None:
        return [probes_of_shape(shape, dtype) for dtype, shape in unsized], [dtype for dtype, _ in unsized]
    if all(probes is not None for probes in known):
        try:
            return list(infer(compute, [probes for probes in known if probes is not None], op.folds)), None
        except ArgumentError:
            if _certain(known):
                raise
        except NEEDS_VALUE:
            with suppress(Exception):
                return list(infer_by_values(compute, [probes for probes in known if probes is not None])), None
        except Exception as exc:
            if not lenient and _certain(known):
                refusal = _refused(op, exc)
                if op.graph.region is None or not op.graph.region.dynamic:
                    raise refusal from exc
                with suppress(Exception):
                    return list(infer_by_values(compute, [probes for probes in known if probes is not None])), None
    # Under a wrong assumption about an unknown size anything may fail.
    guessed = guess(compute, [Input(tensor.shape, tensor.dtype, tensor.probes) for tensor in inputs])
    if guessed is None and refusal is not None:
        raise refusal
    if guessed is None:
        return [None] * count, None
    return [probes_of_shape(shape, dtype) for dtype, shape in guessed], [dtype for dtype, _ in guessed]


def _certain(known: Sequence[Probes]) -> bool:
    """Whether all sizes of some inputs are known."""
    return all(probes is not None and probes[0] is probes[1] for probes in known)


def _refused(op: Operation, exc: Exception) -> Exception:
    shown = ", ".join(f"{tensor.dtype.name}{tensor.shape}" for tensor in op.inputs)
    text = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
    kind = TypeError if isinstance(exc, TypeError) and "dtype" in text else ValueError
    return kind(f"{op.type} cannot be applied to inputs of {shown}: {text} (at {op.where})")


def _common(inputs: Sequence[Tensor]) -> DType:
    floating = [tensor.dtype for tensor in inputs if tensor.dtype.is_floating]
    return floating[0] if floating else inputs[0].dtype


def record_tensor(type_: str, compute: Compute, inputs: Sequence[Tensor] = (), **more: Any) -> Tensor:
    """The only output of an operation that is recorded as by `record`."""
    return record(type_, compute, inputs, **more).outputs[0]


def convert(value: Any, dtype: DType | None = None, name: str | None = None) -> Tensor:
    """Convert a tensor, a variable, numbers in nested lists or an array to a tensor.

    Raises:
      TypeError, ValueError: the value cannot become a tensor, or not one of this dtype.
    """
    if hasattr(value, "as_tensor"):
        value = value.as_tensor()
    if isinstance(value, Tensor):
        if dtype is not None and value.dtype != dtype:
            raise ValueError(
                f"Tensor conversion requested dtype {dtype.name} for Tensor with dtype {value.dtype.name}: {value} "
                f"(at {user_line()})"
            )
        return value
    if isinstance(value, TensorShape):
        if not value.is_fully_defined():
            raise ValueError(f"Cannot convert a partially known TensorShape {value} to a Tensor.")
        value = value.as_list()
    if isinstance(value, Dimension):
        value = int(value)
    if isinstance(value, list | tuple) and _has_tensor(value):
        return _packed(value, dtype)
    if isinstance(value, list | tuple):
        value = [int(one) if isinstance(one, Dimension) else one for one in value]
    if value is None:
        raise ValueError(f"None values not supported. (at {user_line()})")
    return constant(array_of(value, dtype), name=name or "Const")


def constant(array: np.ndarray[Any, Any], name: str = "Const", dtype: DType | None = None) -> Tensor:
    """Record a constant."""
    kind = dtype or as_dtype(array.dtype)
    if kind.numpy != array.dtype:
        array = array.astype(kind.numpy)
    return record_tensor("Const", lambda: array, name=name, value=array, dtypes=[kind], folds=True)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor or stands for one."""
    return isinstance(value, Tensor) or hasattr(value, "as_tensor")


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensor(one) for one in value)
    return is_tensor(value)


def _packed(values: Sequence[Any], dtype: DType | None) -> Tensor:
    known = [one for one in values if is_tensor(one)]
    if dtype is None and known:
        dtype = convert(known[0]).dtype
    tensors = [convert(one, dtype) for one in values]
    return record_tensor("Pack", lambda *parts: stack(parts), tensors, name="packed", folds=True)


def known_value(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the value of a tensor that follows from constants; `None` if it does not."""
    if not isinstance(tensor, Tensor):
        return None
    probes = tensor.probes
    if probes is None or probes[0].value is None or probes[1].value is None:
        return None
    if probes[0] is not probes[1] and not np.array_equal(probes[0].value, probes[1].value):
        return None
    return probes[0].value


@contextmanager
def name_scope(name: str | None, default_name: str | None = None, values: Any = None) -> Iterator[str]:  # noqa: ARG001
    """Names made inside begin with this one; `values` is for TensorFlow's old form."""
    with get_default_graph().name_scope(name if name is not None else default_name) as scope:
        yield scope
