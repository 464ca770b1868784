"""Execution of the operations of the table: noted to be computed, or at once where JAX traces what they are given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.binding import converted, flattened, put_back
from trainband.compat.ops.checks import noting
from trainband.compat.ops.dtypes import DType, array_of, as_dtype, string
from trainband.compat.ops.signature import V2_PARAMETERS, Signature
from trainband.compat.ops.table import Op
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.deciding import OPEN, decided, place_of_script
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.immediate import array_from, is_immediate, results_of
from trainband.compat.tf2.eager.logits import note_operation
from trainband.compat.tf2.eager.named import NAMED
from trainband.compat.tf2.eager.recording import record
from trainband.compat.tf2.eager.seeds import key_of, of_operation
from trainband.compat.tf2.eager.symbolic import Symbolic
from trainband.compat.tf2.eager.tensor import Tensor


class _EagerTensors:
    """Tensors that have values, or will: see `binding.Tensors`."""

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor, a variable, or one of JAX's arrays."""
        return isinstance(value, Tensor | jax.Array | jax.core.Tracer) or hasattr(value, "__trainband_tensor__")

    def convert(self, value: Any, dtype: DType | None) -> Tensor:
        """A tensor of anything."""
        return convert(value, dtype)

    def known(self, value: Any, what: str) -> Any:
        """Its value."""
        found = convert(value)
        if found.is_traced and not OPEN.deciders:
            raise ValueError(f"{what} must be known before anything is traced, got {found}.")
        return np.asarray(decided(found))


TENSORS = _EagerTensors()


def convert(value: Any, dtype: DType | None = None) -> Tensor:
    """Make a tensor.

    Raises:
      TypeError, ValueError: it cannot become one, or not one of this dtype.
    """
    if hasattr(value, "__trainband_tensor__"):
        value = value.__trainband_tensor__()
    elif isinstance(value, list | tuple) and _holds_tensor(value):
        from trainband.compat.ops.array import stack
        from trainband.compat.ops.table import op_of

        parts = list(value)
        first = next((one for one in parts if TENSORS.is_tensor(one)), None)
        kind = dtype or (None if first is None else convert(first).dtype)
        stacked: Tensor = run(op_of(stack), {"values": [convert(one, kind) for one in parts], "axis": 0})
        return stacked
    elif isinstance(value, jax.Array | jax.core.Tracer):
        value = Tensor(value)
    if not isinstance(value, Tensor):
        return Tensor(array_of(value, dtype))
    if dtype is not None and value.dtype is not dtype:
        raise ValueError(
            f"Tensor conversion requested dtype {dtype.name} for Tensor with dtype {value.dtype.name}: {value!r}"
        )
    return value


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_tensor, value))
    return TENSORS.is_tensor(value)


def compute(
    key: Any,
    call: Callable[..., Sequence[Any]],
    inputs: Sequence[Tensor],
    *,
    flat: bool = False,
    at_once: bool = False,
) -> list[Tensor]:
    """The results of a function of arrays, as tensors.

    Args:
      key: what tells the function from all others.
      flat: whether no derivative goes through it.
      at_once: whether it must know the values of its inputs.
    """
    kind = DEFERRED.kind_of(key)
    if is_immediate() and not any(one.is_traced for one in inputs):
        return [Tensor(value) for value in results_of(kind, call, [one.array for one in inputs], at_once)]
    if at_once:
        kind, call = _of_values(key, call, inputs)
        with jax.enable_x64(True), noting(_refuse), np.errstate(all="ignore"):
            try:
                found = call(*(np.asarray(one.array) for one in inputs))
            except IndexError as exc:  # an axis that is not there
                raise InvalidArgumentError(None, None, str(exc)) from exc
        results = [Tensor(value if hasattr(value, "shape") else array_from(value)) for value in found]
    elif any(one.is_traced for one in inputs):
        with jax.enable_x64(True):
            results = [Tensor(value) for value in call(*(one.array for one in inputs))]
    else:
        step = DEFERRED.note(kind, call, inputs, [one.aval for one in inputs])
        results = Tensor.results(step)
    if not flat:
        record(kind, call, inputs, results)
    return results


def _of_values(
    key: Any, call: Callable[..., Sequence[Any]], inputs: Sequence[Tensor]
) -> tuple[int, Callable[..., Sequence[Any]]]:
    """The function of those inputs through which derivatives go; the values of the others are parts of it."""
    held = [None if one.dtype.is_differentiable else np.asarray(one.array) for one in inputs]

    def of_values(*arrays: Any) -> Sequence[Any]:
        return call(*(array if own is None else own for own, array in zip(held, arrays, strict=True)))

    return DEFERRED.kind_of((key, "of values", frozen(held))), of_values


def _refuse(holds: Any, message: str) -> None:
    if not bool(holds):
        raise InvalidArgumentError(None, None, message)


def run(op: Op, values: Mapping[str, Any], seed: int | None = None) -> Any:
    """The result of an operation, with arguments by name; several as the table says."""
    try:
        arguments = converted(op, values, TENSORS)
    except Symbolic as symbolic:
        return symbolic.apply(op, values, seed)
    for name in op.shapes:
        if isinstance(arguments.get(name), Tensor):
            arguments[name] = TENSORS.known(arguments[name], f"{op.name}: {name}")
    if op.unchanged is not None and op.unchanged(**{name: _seen(value) for name, value in arguments.items()}):
        return arguments[op.tensors[0]]
    inputs, layout = flattened(op, arguments)
    for name in [one for one in layout if one in op.shapes]:
        del layout[name]
    inputs = [one for one in inputs if isinstance(one, Tensor)]
    settings = {one: value for one, value in arguments.items() if one not in layout}
    single = op.outputs == 1
    key = (op, frozen(settings), tuple(layout.items()))
    if op.random:
        inputs = [of_operation(seed), *inputs]

    def call(*arrays: Any) -> Sequence[Any]:
        drawn = key_of(arrays[0]) if op.random else None
        found = op.call(put_back(settings, layout, arrays[1:] if op.random else arrays), drawn)
        return (found,) if single else tuple(found)

    place = place_of_script() if OPEN.deciders else None
    if place is not None:
        OPEN.deciders[-1].runs(op.key, inputs, place)
    at_once = op.folds and bool(inputs) and all(_is_at_hand(one) for one in inputs)
    try:
        results = compute(key, call, inputs, flat=op.flat, at_once=at_once)
    except (ValueError, IndexError, NotImplementedError):  # what it refuses without values, it may do with them
        if at_once:
            raise
        if any(one.is_traced for one in inputs):
            seen = None if place is None else OPEN.deciders[-1].values_of(op.key, inputs, place)
            if seen is None:
                raise
            inputs = list(map(Tensor, seen))
        results = compute(key, call, inputs, flat=op.flat, at_once=True)
    if op.type in ("Sigmoid", "Softmax"):
        note_operation(op.type, settings.get("axis"), inputs, results)
    if op.type in NAMED:
        return NAMED[op.type](*results)
    return results[0] if single else (tuple(results) if isinstance(op.outputs, int) else results)


def _is_at_hand(tensor: Tensor) -> bool:
    """Whether NumPy computes what is done with a tensor: it is small, or text, or nothing is noted here."""
    return tensor.is_small or tensor.dtype is string or (is_immediate() and not tensor.is_traced)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What an operation may decide by before it runs."""

    shape: tuple[int, ...]
    dtype: DType
    value: Any


def _seen(value: Any) -> Any:
    if isinstance(value, list):
        return [_seen(one) for one in value]
    if not isinstance(value, Tensor):
        return value
    return _Seen(value.aval[0], value.dtype, value.array if value.is_small else None)


@functools.cache
def function_of(op: Op) -> Callable[..., Any]:
    """The function that a script calls for an operation, with TensorFlow 2's parameters."""
    signature = Signature.parse(op, V2_PARAMETERS.get(op.name, ""))

    def call_it(*arguments: Any, **keywords: Any) -> Any:
        values, others = signature.bind(arguments, keywords)
        return run(op, values, others.get("seed"))

    call_it.__name__ = call_it.__qualname__ = op.name
    call_it.__doc__ = op.function.__doc__
    call_it.__signature__ = signature.shown  # type: ignore[attr-defined]
    return call_it


def frozen(value: Any) -> Any:
    """A key that is equal for equal settings."""
    if isinstance(value, Mapping):
        return tuple((name, frozen(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(frozen, value))
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, slice):
        return ("slice", frozen(value.start), frozen(value.stop), frozen(value.step))
    if isinstance(value, DType):
        return value.name
    if isinstance(value, float | int | bool):
        return (type(value).__name__, value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def cast_to(value: Any, dtype: Any) -> Tensor:
    """A tensor, converted to a dtype where it has another."""
    from trainband.compat.ops.math import cast
    from trainband.compat.ops.table import op_of

    tensor = convert(value)
    kind = as_dtype(dtype)
    return tensor if tensor.dtype is kind else run(op_of(cast), {"x": tensor, "dtype": kind})
