"""Signature: the input and output tensors of a program, by name, with dtypes and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from numpy.typing import NDArray

from trainband.errors import DataError, ModelError
from trainband.model.variables import PyTree, path_name

BATCH = "batch"
"""The name of the axis of examples, whose length may change from call to call."""

_SPEC = re.compile(r"(?:(?P<name>[A-Za-z_][\w./-]*):)?(?P<dtype>[a-z]+\d*(?:_\w+)?)\[(?P<shape>[^\[\]]*)\]")
_SHORT = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor.

    Attributes:
      name: unique among the inputs, and among the outputs.
      dtype: NumPy's name of it, or one such as `bfloat16`.
      shape: for each axis a length, the name of one that may vary between calls (`batch`), or a term of such names.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def parsed(cls, text: str, default_name: str) -> TensorSpec:
        """Parses `images:float32[batch,28,28]`; the name is optional, and `f32` is short for `float32`.

        Raises:
          DataError: the text is malformed.
        """
        found = _SPEC.fullmatch(text.replace(" ", ""))
        wrong = DataError(
            f"{text!r} does not describe a tensor; expected name:dtype[shape], as in images:float32[batch,28,28]."
        )
        if found is None:
            raise wrong
        short = re.fullmatch(r"(bf|[fiu])(\d+)", found["dtype"])
        dtype = _SHORT[short[1]] + short[2] if short else found["dtype"]
        try:
            jnp.dtype(dtype)
        except TypeError:
            raise wrong from None
        parts = [part for part in found["shape"].split(",") if part]
        if not all(part.isdigit() or part.isidentifier() for part in parts):
            raise wrong
        return cls(found["name"] or default_name, dtype, tuple(int(p) if p.isdigit() else p for p in parts))

    @property
    def dynamic(self) -> bool:
        """Whether a length may change from call to call."""
        return any(isinstance(length, str) for length in self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a program."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def batched(self) -> bool:
        """Whether every input's and output's first axis counts examples."""
        return all(spec.shape[:1] == (BATCH,) for spec in (*self.inputs, *self.outputs))

    def check(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Compares given inputs with the expected ones.

        Raises:
          DataError: names the first input that is missing, unknown, or of another dtype or shape.
        """
        wanted = {spec.name: spec for spec in self.inputs}
        for name in inputs:
            if name not in wanted:
                raise DataError(f"there is no input {name!r}; the inputs are {self.expected()}.")
        lengths: dict[str, int] = {}
        for name, spec in wanted.items():
            if name not in inputs:
                raise DataError(f"the input {name!r} is missing; the inputs are {self.expected()}.")
            given = inputs[name]
            if given.dtype.name != spec.dtype or len(given.shape) != len(spec.shape):
                raise DataError(f"the input {name!r} is {_found(given)}; expected {spec}.")
            for length, want in zip(given.shape, spec.shape, strict=True):
                if isinstance(want, int):
                    if length != want:
                        raise DataError(f"the input {name!r} is {_found(given)}; expected {spec}.")
                elif lengths.setdefault(want, length) != length:
                    raise DataError(
                        f"the input {name!r} is {_found(given)}, but another input has {want} {lengths[want]}."
                    )

    def expected(self) -> str:
        """Returns the inputs as text."""
        return "; ".join(map(str, self.inputs))


def _found(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


@cache
def _scope() -> Any:
    return jax_export.SymbolicScope()


def structs(specs: Sequence[TensorSpec]) -> dict[str, jax.ShapeDtypeStruct]:
    """Converts the specs to JAX's, for tracing.

    Lengths with a name are symbolic dimensions, equal wherever the name is, so that a traced program can be traced
    again as a part of another.
    """
    scope = _scope()
    return {
        spec.name: jax.ShapeDtypeStruct(
            jax_export.symbolic_shape(",".join(map(str, spec.shape)), scope=scope) if spec.shape else (),
            jax.dtypes.canonicalize_dtype(jnp.dtype(spec.dtype)),
        )
        for spec in specs
    }


def specs_of(named: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Converts JAX's shapes to specs."""
    return tuple(
        TensorSpec(name, np.dtype(leaf.dtype).name, tuple(n if isinstance(n, int) else str(n) for n in leaf.shape))
        for name, leaf in named.items()
    )


def specs_of_example(named: Mapping[str, Any], batch: int | None = None) -> tuple[TensorSpec, ...]:
    """Returns the specs of arrays whose first axis, if any, counts examples.

    Args:
      named: the arrays.
      batch: the number of examples in every call; any number if `None`.
    """
    return tuple(
        TensorSpec(name, np.dtype(leaf.dtype).name, (batch or BATCH, *leaf.shape[1:]) if leaf.shape else ())
        for name, leaf in named.items()
    )


def named_leaves(tree: PyTree, alone: str) -> dict[str, Any]:
    """Returns the leaves of a pytree by names that every format takes: letters, digits and `_`, no leading digit.

    Args:
      tree: of arrays.
      alone: the name if the tree is one bare array, and the prefix of positions (`input_0`).

    Raises:
      ModelError: two leaves would have the same name.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = re.sub(r"\W", "_", path_name(path)) if path else alone
        if name[:1].isdigit():
            name = f"{alone}_{name}"
        if name in named:
            raise ModelError(f"two tensors would have the name {name!r}; rename the keys of {alone}s.")
        named[name] = leaf
    return named
