"""Side effects of a run: printing, assertions, and calls of Python functions."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental
import numpy as np

from trainband.compat.ops.arrays import ComputedError
from trainband.compat.ops.checks import check
from trainband.compat.ops.dtypes import array_of, as_dtype, string
from trainband.compat.ops.shapes import TensorShape
from trainband.compat.tf1.graphs.effects import guarded
from trainband.compat.tf1.graphs.errors import (
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)
from trainband.compat.tf1.graphs.graph import Operation, Tensor, get_default_graph
from trainband.compat.tf1.graphs.record import convert, record
from trainband.compat.tf1.operations.control_flow import group


def print_(
    input_: Any,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the same tensor; whenever it is computed, `data` is printed on stderr.

    Args:
      first_n: print only the first `first_n` times.
      summarize: how many elements of each tensor to print; 3 by default.
    """
    whole = convert(input_)
    tensors = [convert(one) for one in data]
    printed = 0

    def show(*values: Any) -> None:
        nonlocal printed
        if first_n is not None and 0 <= first_n <= printed:
            return
        printed += 1
        print(f"{message or ''}{''.join(_shown(value, summarize or 3) for value in values)}", file=sys.stderr)

    def compute(value: Any, *values: Any) -> Any:
        jax.debug.callback(guarded(show), *values)
        return value

    return _effect("Print", compute, whole, tensors, name)


def _effect(type_: str, compute: Callable[..., Any], whole: Tensor, more: Sequence[Tensor], name: str | None) -> Tensor:
    op = record(
        type_, compute, [whole, *more], name=name, dtypes=[whole.dtype], shapes=[whole.shape],
        attributes={"effect": True},
    )  # fmt: skip
    return op.outputs[0]


def _shown(value: Any, most: int) -> str:
    flat = np.ravel(np.asarray(value))
    inner = " ".join(str(one) for one in flat[:most]) + ("..." if flat.size > most else "")
    return f"[{inner}]"


def py_func(
    func: Callable[..., Any],
    inp: Sequence[Any],
    Tout: Any,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Calls a Python function of arrays. It has no derivative.

    Where `set_shape` says the shapes of its results, it is called from the compiled run, otherwise before it.
    """
    inputs = [convert(one) for one in inp]
    several = isinstance(Tout, list | tuple)
    func = _with_errors(func)
    dtypes = [as_dtype(one) for one in (Tout if several else [Tout])]

    def compute(*values: Any) -> Any:
        if not all(output.shape.is_fully_defined() for output in op.outputs):
            raise ComputedError("the shapes of the results of a py_func are unknown")
        kinds = [
            jax.ShapeDtypeStruct(tuple(size or 0 for size in output.shape.sizes or ()), d.numpy)
            for output, d in zip(op.outputs, dtypes, strict=True)
        ]

        def call(*arrays: Any) -> Any:
            found = func(*(np.asarray(array) for array in arrays))
            listed = list(found) if isinstance(found, list | tuple) else [found]
            listed = listed if kinds else []
            if [np.shape(one) for one in listed] != [kind.shape for kind in kinds]:
                raise InvalidArgumentError(
                    None,
                    op,
                    f"py_func gave results of the shapes {[np.shape(one) for one in listed]}, but set_shape declared "
                    f"{[kind.shape for kind in kinds]}",
                )
            return [np.asarray(one, kind.dtype) for one, kind in zip(listed, kinds, strict=True)]

        stopped = [jax.lax.stop_gradient(value) for value in values]
        zeros = [np.zeros(kind.shape, kind.dtype) for kind in kinds]
        return jax.experimental.io_callback(guarded(call, lambda: zeros), kinds, *stopped, ordered=False)

    def python(*arrays: Any) -> list[Any]:
        """What it gives where nothing is compiled, so that any shape will do."""
        found = func(*(one[()] if one.ndim == 0 and one.dtype == object else one for one in arrays))
        listed = list(found) if isinstance(found, list | tuple) and several else [found]
        return [
            array_of(one, string) if d == string else np.asarray(one, d.numpy)
            for one, d in zip(listed, dtypes, strict=True)
        ]

    def run(_: Any, *values: Any) -> Any:
        return compute(*values)

    op: Operation = record(
        "PyFunc" if stateful else "PyFuncStateless",
        (lambda *values: compute(*values)[0]) if len(dtypes) == 1 else compute if dtypes else run,
        inputs,
        name=name,
        count=len(dtypes),
        dtypes=dtypes,
        shapes=[None] * len(dtypes),
        stateful=not dtypes,
        attributes={
            "effect": True,
            "flat": True,
            "python": python,
            "unsized": [(kind, TensorShape(None)) for kind in dtypes],
        },
    )
    if not dtypes:
        return op
    return list(op.outputs) if several else op.outputs[0]


def _with_errors(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose exceptions are TensorFlow's."""

    def call(*arrays: Any) -> Any:
        try:
            return func(*arrays)
        except OpError:
            raise
        except Exception as exc:
            kind = next((error for python, error in _ERRORS.items() if isinstance(exc, python)), UnknownError)
            raise kind(None, None, f"{type(exc).__name__}: {exc}\n{traceback.format_exc()}") from exc

    return call


_ERRORS: dict[type[Exception], type[OpError]] = {
    StopIteration: OutOfRangeError,
    MemoryError: ResourceExhaustedError,
    NotImplementedError: UnimplementedError,
    TypeError: InvalidArgumentError,
    ValueError: InvalidArgumentError,
}


def asserting(
    type_: str,
    given: Sequence[Tensor],
    holds: Callable[..., Any],
    name: str | None,
    data: Sequence[Any] = (),
    summarize: int | None = None,
) -> Operation:
    """Record an operation that makes a run fail if a condition on given tensors does not hold.

    Args:
      data: what the error shows: tensors and texts; of each tensor, as many elements as `summarize` says.
    """
    shown = [one if isinstance(one, str) else _as_text(convert(one)) for one in data]
    tensors = [one for one in shown if isinstance(one, Tensor)]

    def compute(*values: Any) -> Any:
        found = values[: len(given)]

        def look(good: Any, *arrays: Any) -> None:
            if not bool(good):
                rest = iter(arrays)
                texts = (f"[{one}]" if isinstance(one, str) else _shown(next(rest), summarize or 3) for one in shown)
                raise InvalidArgumentError(None, op, f"assertion failed: {' '.join(texts)}")

        check(lambda: holds(*found), "assertion failed")
        jax.debug.callback(guarded(look), holds(*found), *values[len(given) :])
        return []

    op = record(
        type_,
        lambda _, *values: compute(*values),
        [*given, *tensors],
        count=0,
        name=name,
        stateful=True,
        attributes={"effect": True},
    )
    return op


def _as_text(tensor: Tensor) -> Tensor | str:
    """A constant text, and the name of a computed one, which compiled code does not have."""
    if tensor.dtype != string:
        return tensor
    return str(tensor.op.compute()[0]) if tensor.op.type == "Const" else tensor.name


def assert_(condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None) -> Operation:
    """Make a run fail if a condition does not hold."""
    return asserting("Assert", [convert(condition)], lambda c: c.all(), name, data, summarize)


def check_numerics(tensor: Any, message: str | None, name: str | None = None) -> Tensor:
    """Return the same tensor; a run in which it contains NaN or infinity fails with the message."""
    whole = convert(tensor)

    def compute(value: Any) -> Any:
        def look(finite: Any) -> None:
            if not bool(finite):
                raise InvalidArgumentError(None, result.op, f"{message} : Tensor had NaN or Inf values")

        check(lambda: jax.numpy.isfinite(value).all(), f"{message} : Tensor had NaN or Inf values")
        jax.debug.callback(guarded(look), jax.numpy.isfinite(value).all())
        return value

    result: Tensor = _effect("CheckNumerics", compute, whole, [], name)
    return result


def verify_tensor_all_finite(
    t: Any = None, msg: str | None = None, name: str | None = None, x: Any = None, message: str | None = None
) -> Tensor:
    """Return the same tensor; a run in which it contains NaN or infinity fails with the message."""
    return check_numerics(x if t is None else t, message if msg is None else msg, name or "VerifyFinite")


def add_check_numerics_ops() -> Operation:
    """Record an operation that fails if any floating-point tensor of the graph contains NaN or infinity.

    Raises:
      ValueError: the graph has branches or loops.
    """
    graph = get_default_graph()
    if any("regions" in op.attributes for op in graph.get_operations()):
        raise ValueError(
            "`tf.add_check_numerics_ops() is not compatible with TensorFlow control flow operations such as "
            "`tf.cond()` or `tf.while_loop()`."
        )
    tensors = [
        output
        for op in graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating and op.region is None and op.type not in ("VariableV2", "LoopVariable")
    ]
    return group(*(check_numerics(one, one.name) for one in tensors))


def print_v2(*inputs: Any, output_stream: Any = None, **_: Any) -> Operation:
    """An operation that prints, as `tf.print` does."""
    stream = output_stream or sys.stderr

    def compute(*values: Any) -> Any:
        def show(*arrays: Any) -> None:
            rest = iter(arrays)
            parts = [str(np.asarray(next(rest))) if one is None else str(one) for one in texts]
            print(*parts, file=stream)

        jax.debug.callback(guarded(show), *values)
        return []

    texts = [one if isinstance(one, str) else None for one in inputs]
    tensors = [convert(one) for one in inputs if not isinstance(one, str)]
    return record(
        "PrintV2",
        lambda _, *values: compute(*values),
        tensors,
        count=0,
        name="PrintV2",
        stateful=True,
        attributes={"effect": True},
    )
