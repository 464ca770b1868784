"""Operations on Keras's symbolic tensors, as steps of a functional model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.ops.table import TABLE, Op
from trainband.compat.tf2.eager.execute import run
from trainband.compat.tf2.eager.symbolic import Symbolic
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import SymbolicScope, backend_module, keras
from trainband.compat.tf2.keras.lifting import plain, tensors

_SIZES = (83, 89)
"""Stand for an unknown size: results that differ between them depend on it."""
_OPERATORS = "add sub mul truediv floordiv mod pow matmul radd rsub rmul rtruediv lt le gt ge".split()


def _is_symbol(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


def spec_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of what a function gives for symbolic tensors."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    places = [index for index, leaf in enumerate(leaves) if _is_symbol(leaf)]
    kept: list[Any] = []

    def traced(*arrays: Any) -> Any:
        values = list(leaves)
        for index, array in zip(places, arrays, strict=True):
            values[index] = array
        positional, named = jax.tree.unflatten(structure, values)
        with keras.StatelessScope():
            found = plain(function(*positional, **named))
        flat, tree = jax.tree.flatten(found)
        kept[:] = [tree]
        return flat

    found = []
    for size in _SIZES:
        shapes = [
            jax.ShapeDtypeStruct(
                [size if one is None else one for one in leaves[index].shape],
                jax.dtypes.canonicalize_dtype(leaves[index].dtype),  # Keras computes with 32 bits
            )
            for index in places
        ]
        # Variables that are made meanwhile get their values when the outer scope ends, where nothing is traced.
        with keras.StatelessScope(), SymbolicScope():
            found.append(jax.eval_shape(traced, *shapes))
    specs = [
        keras.KerasTensor(
            tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)), str(one.dtype)
        )
        for one, other in zip(*found, strict=True)
    ]
    return jax.tree.unflatten(kept[0], specs)


@keras.saving.register_keras_serializable(package="trainband")
class TensorOperation(keras.Operation):  # type: ignore[misc, name-defined]
    """An operation of the table, in a model.

    Args:
      operation: its name.
      seed: of one that draws random numbers.
    """

    def __init__(self, operation: str, seed: int | None = None, name: str | None = None) -> None:
        super().__init__(name=name)
        self._operation = operation
        self._seed = seed

    def call(self, values: Any) -> Any:
        """The results, for arguments by name."""
        given = {name: _dtype(value) for name, value in values.items()}
        return plain(run(TABLE[self._operation], tensors(given), self._seed))

    def compute_output_spec(self, values: Any) -> Any:
        """The shapes and dtypes of the results."""
        return spec_of(self.call, values)

    def get_config(self) -> dict[str, Any]:
        """What makes it anew."""
        return {"operation": self._operation, "seed": self._seed, "name": self.name}


def _dtype(value: Any) -> Any:
    """A dtype, which is kept by its name."""
    if isinstance(value, str) and value.startswith("dtype:"):
        return as_dtype(value[6:])
    return value


def _apply(op: Op, values: Any, seed: int | None) -> Any:
    name = next((one for one, other in TABLE.items() if other is op), None)
    if name is None:
        raise Symbolic(_apply)
    kept = {one: f"dtype:{value.name}" if isinstance(value, DType) else value for one, value in values.items()}
    return TensorOperation(name, seed).symbolic_call(kept)


def _tensor(self: Any) -> Tensor:
    del self
    raise Symbolic(_apply)


def _computing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras's `compute_output_spec`, for functions that must know sizes as well."""

    def compute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(function, *args, **kwargs)
        except Exception as first:
            try:
                return spec_of(function, *args, **kwargs)
            except Exception:
                raise first from None

    return compute


def _operator(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, other: Any) -> Any:
        return original(self, other.array if isinstance(other, Tensor) else other)

    return call


def install() -> None:
    """Has operations take Keras's symbolic tensors."""
    kind = keras.KerasTensor
    kind.__trainband_tensor__ = _tensor
    for one in _OPERATORS:
        name = f"__{one}__"
        setattr(kind, name, _operator(getattr(kind, name)))
    kind.get_shape = lambda self: self.shape
    backend_module.compute_output_spec = _computing(backend_module.compute_output_spec)
