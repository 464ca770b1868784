"""Tensor: an array that is known, that is noted to be computed, or that JAX traces."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf2.eager.deciding import decided
from trainband.compat.tf2.eager.deferred import DEFERRED, Aval, Step
from trainband.compat.tf2.eager.shapes import TensorShape

SMALL = 16
"""As many numbers are few."""


class Tensor:
    """A tensor. Its value is computed when somebody looks at it."""

    __slots__ = ("__weakref__", "_aval", "_source", "_value", "dtype", "logits", "whole")
    __array_priority__ = 100  # NumPy's arrays leave their operators to ours

    def __init__(self, value: Any = None, source: tuple[Step, int] | None = None) -> None:
        """Of a value (NumPy's, JAX's, or one that JAX traces), or of a result of a step."""
        self._value = value
        self._source = source
        self.whole: Any = None
        """The same value as an array that the devices of all processes have, where there are several."""
        self.logits: tuple[int, Any] | None = None
        """The tensor that it was computed from, if that may matter; see `logits`."""
        if source is None:
            self._aval: Aval = (tuple(value.shape), np.dtype(value.dtype))
        else:
            self._aval = source[0].avals[source[1]]
        self.dtype: DType = as_dtype(self._aval[1])
        """The type of its elements."""

    @classmethod
    def results(cls, step: Step) -> list[Tensor]:
        """The tensors that a step computes."""
        found = [cls(source=(step, which)) for which in range(len(step.avals))]
        step.holders = [weakref.ref(one) for one in found]
        return found

    def settle(self, value: Any) -> None:
        """Takes the value that has been computed."""
        self._value, self._source = value, None

    @property
    def aval(self) -> Aval:
        """The shape and dtype."""
        return self._aval

    @property
    def input(self) -> Any:
        """What a step takes of it: its value, or where that will come from."""
        return self._value if self._source is None else self._source

    @property
    def is_traced(self) -> bool:
        """Whether JAX traces it, so that it has no value of its own."""
        return isinstance(self._value, jax.core.Tracer)

    @property
    def is_noted(self) -> bool:
        """Whether it is noted to be computed, and has not been."""
        return self._source is not None

    @property
    def is_small(self) -> bool:
        """Whether its value is known, and of few numbers: what NumPy computes of it needs no program."""
        return isinstance(self._value, np.ndarray) and self._value.size <= SMALL

    @property
    def array(self) -> Any:
        """The value as it is: NumPy's or JAX's array, or what JAX traces."""
        if self._source is not None:
            DEFERRED.run()
        return self._value

    def __jax_array__(self) -> Any:
        """Its value, for functions of JAX."""
        return jax.numpy.asarray(self.array)

    def numpy(self) -> Any:
        """The value as NumPy's: an array of the caller's own, or a scalar where there are no axes.

        Raises:
          NotImplementedError: JAX traces it.
        """
        value = self.array
        if self.is_traced:
            raise NotImplementedError("numpy() is only available when eager execution is enabled.")
        found = np.asarray(value)
        return found[()] if found.ndim == 0 else found.copy()

    @property
    def shape(self) -> TensorShape:
        """The sizes."""
        return TensorShape(self._aval[0])

    def get_shape(self) -> TensorShape:
        """The sizes."""
        return self.shape

    @property
    def ndim(self) -> int:
        """The rank."""
        return len(self._aval[0])

    @property
    def device(self) -> str:
        """Where it is."""
        return "/job:localhost/replica:0/task:0/device:CPU:0"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        found = np.asarray(self.numpy())
        return found if dtype is None else found.astype(dtype)

    def __bool__(self) -> bool:
        return bool(decided(self))

    def __int__(self) -> int:
        return int(decided(self))

    def __float__(self) -> float:
        return float(decided(self))

    def __index__(self) -> int:
        return int(decided(self).__index__())

    def __len__(self) -> int:
        if not self._aval[0]:
            raise TypeError("Scalar tensor has no `len()`")
        return self._aval[0][0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._aval[0]:
            raise TypeError("Cannot iterate over a scalar tensor.")
        return (self[index] for index in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.numpy(), spec) if not self._aval[0] else format(str(self), spec)

    def __hash__(self) -> int:
        raise TypeError("Tensor is unhashable. Instead, use tensor.ref() as the key.")

    if TYPE_CHECKING:  # `operators` gives them

        def __getitem__(self, key: Any) -> Tensor: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...

    def ref(self) -> Reference:
        """Something that stands for it in sets and as a key."""
        return Reference(self)

    def __repr__(self) -> str:
        if self.is_traced:
            return f"<tf.Tensor shape={self.shape} dtype={self.dtype.name}>"
        return f"<tf.Tensor: shape={_shown(self._aval[0])}, dtype={self.dtype.name}, numpy={shown(self.numpy())}>"

    def __str__(self) -> str:
        if self.is_traced:
            return f"Tensor(shape={_shown(self._aval[0])}, dtype={self.dtype.name})"
        return f"tf.Tensor({self.numpy()}, shape={_shown(self._aval[0])}, dtype={self.dtype.name})"


class Reference:
    """Stands for a tensor or a variable where something must be hashable."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def deref(self) -> Any:
        """What it stands for."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def shown(value: Any) -> str:
    """A value as TensorFlow shows it: numbers without their types."""
    return str(value) if isinstance(value, np.number | np.bool_) else repr(value)


def _shown(sizes: tuple[int, ...]) -> str:
    return str(tuple(sizes))
