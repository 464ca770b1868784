"""Lifting: a function of Keras's, on arrays, becomes a computation of tensors that is deferred and that tapes see."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.eager.captured import NotCaptured
from trainband.compat.tf2.eager.execute import compute, convert, frozen
from trainband.compat.tf2.eager.logits import Logits, eagerly, is_in_graph, logits_of, remember
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.logits import logits_of_array, remember_array
from trainband.compat.tf2.keras.variables import inside, read
from trainband.keras.keras_internals import keras

_UNTRACEABLE = (
    NotCaptured,
    NotImplementedError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_numbers = itertools.count()
_trees: dict[Any, Any] = {}
"""The structures of what has come out, by key, and which of it came with logits."""


def is_leaf(value: Any) -> bool:
    """Whether a value is one tensor, and no structure."""
    return isinstance(value, Tensor) or (
        hasattr(value, "__trainband_tensor__") and not isinstance(value, keras.KerasTensor)
    )


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, a variable or an array."""
    return isinstance(value, np.ndarray | jax.Array) or is_leaf(value)


def numbers_as_tensors(value: Any) -> Any:
    """A tensor in place of a list of numbers."""
    if isinstance(value, list | tuple) and value and all(map(_is_numbers, value)):
        return convert(value)
    return value


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_numbers, value))
    return isinstance(value, bool | int | float | np.generic)


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a structure."""
    found: list[Any] = jax.tree.leaves(value, is_leaf=is_leaf)
    return found


def is_keras_own(leaves: Sequence[Any]) -> bool:
    """Whether Keras computes what it is given as it always does: it is symbolic, traced, or in a computation of its."""
    return inside() or any(isinstance(one, jax.core.Tracer | keras.KerasTensor) for one in leaves)


def plain(value: Any) -> Any:
    """A structure with arrays in place of tensors."""
    return jax.tree.map(lambda one: _plain(convert(one)) if is_leaf(one) else one, value, is_leaf=is_leaf)


def _plain(tensor: Tensor) -> Any:
    array, logits = tensor.array, logits_of(tensor)
    remember_array(array, None if logits is None else Logits(logits.value.array, logits.operation))
    return array


def tensors(value: Any) -> Any:
    """A structure with tensors in place of arrays."""
    return jax.tree.map(lambda one: _tensor(one) if isinstance(one, jax.Array) else one, value, is_leaf=is_leaf)


def _tensor(array: Any) -> Tensor:
    tensor, logits = Tensor(array), logits_of_array(array)
    if logits is not None:
        remember(tensor, Logits(Tensor(logits.value), logits.operation))
    return tensor


def token(value: Any) -> tuple[int, int]:
    """What stands for an object in keys, also after it is gone."""
    found = value.__dict__.get("_trainband_number")
    if found is None:
        found = next(_numbers)
        object.__setattr__(value, "_trainband_number", found)
    return found, id(value)


def lifted(key: Any, function: Callable[..., Any], variables: Sequence[Any], arguments: Any) -> Any:
    """What a function of (values of variables, arguments) gives, deferred.

    Args:
      key: what tells the function from all others.
      function: of arrays, to a structure of arrays.
      arguments: a structure; its arrays are inputs, all else is part of the key.
    """
    leaves, structure = jax.tree.flatten(arguments, is_leaf=is_leaf)
    places = {index for index, leaf in enumerate(leaves) if is_array(leaf)}
    fixed = [None if index in places else leaf for index, leaf in enumerate(leaves)]
    inputs = [convert(leaves[index]) for index in sorted(places)]
    held = [read(variable) for variable in variables]
    known = {at: logits for at, one in enumerate(inputs) if (logits := logits_of(one)) is not None}
    is_eager = not is_in_graph([*held, *inputs])
    shapes: list[tuple[Any, list[tuple[int, str]]]] = []

    def call(*arrays: Any) -> Sequence[Any]:
        own = arrays[len(held) : len(held) + len(inputs)]
        of_own = iter(arrays[len(held) + len(inputs) :])
        for at, array in enumerate(own):
            remember_array(array, Logits(next(of_own), known[at].operation) if at in known else None)
        rest = iter(own)
        values = [next(rest) if index in places else one for index, one in enumerate(fixed)]
        with eagerly(is_eager):
            found = plain(function(list(arrays[: len(held)]), jax.tree.unflatten(structure, values)))
        flat, tree = jax.tree.flatten(found)
        of_results = [(at, logits) for at, one in enumerate(flat) if (logits := logits_of_array(one)) is not None]
        shapes.append((tree, [(at, logits.operation) for at, logits in of_results]))
        flat += [logits.value for _, logits in of_results]
        if not any(array.dtype == np.float64 for array in arrays):  # what Keras makes of Python's numbers
            flat = [_single(one) for one in flat]
        return flat

    kinds = tuple((at, logits.operation) for at, logits in known.items())
    whole = (key, len(held), structure, tuple(sorted(places)), frozen(fixed), kinds, is_eager)
    results = compute(whole, call, [*held, *inputs, *(logits.value for logits in known.values())])
    tree, with_logits = _trees.setdefault(whole, shapes[-1] if shapes else (None, []))
    count = len(results) - len(with_logits)
    for (at, operation), value in zip(with_logits, results[count:], strict=True):
        remember(results[at], Logits(value, operation))
    return jax.tree.unflatten(tree, results[:count])


def _single(value: Any) -> Any:
    array = jax.numpy.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def lifted_function(function: Callable[..., Any], name: str, *, takes_lists: bool = False) -> Callable[..., Any]:
    """A function of Keras's that takes tensors as well, and gives tensors.

    Args:
      takes_lists: whether lists of numbers stand for tensors in its first two arguments.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if takes_lists:
            args = (*map(numbers_as_tensors, args[:2]), *args[2:])
        leaves = leaves_of((args, kwargs))
        if is_keras_own(leaves):
            return function(*plain(args), **plain(kwargs))
        if not any(map(is_array, leaves)):
            return tensors(function(*args, **kwargs))
        return lifted(("function", name), lambda _, given: function(*given[0], **given[1]), [], (args, kwargs))

    return call


def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a script's, as Keras may call it: it is given tensors, and gives arrays where Keras traces."""
    if hasattr(function, "is_of_tensors"):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (inside() or any(isinstance(one, jax.core.Tracer) for one in leaves_of((args, kwargs)))):
            return function(*args, **kwargs)
        return plain(function(*tensors(args), **tensors(kwargs)))

    call.is_of_tensors = True  # type: ignore[attr-defined]
    return call


def on_subclass(kind: Any, adapt: Callable[[Any], None]) -> None:
    """Calls `adapt` with each class that is derived from one of Keras's from now on."""
    before = kind.__init_subclass__

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        before(**kwargs)
        adapt(cls)

    kind.__init_subclass__ = classmethod(init_subclass)


def is_untraceable(error: BaseException | None) -> bool:
    """Whether an error says that JAX cannot trace a function; Keras raises another one in its place."""
    while error is not None:
        if isinstance(error, _UNTRACEABLE):
            return True
        error = error.__cause__ or error.__context__
    return False
