"""Variable: a tensor that can be assigned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from trainband.compat.ops.dtypes import DType, as_dtype
from trainband.compat.tf2.eager.captured import Home, is_kept, making_variable, value_of
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.recording import variable_was_read
from trainband.compat.tf2.eager.replica import current, variable_was_made
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Reference, Tensor, shown

_numbers = itertools.count()


class Variable:
    """A variable of the script's.

    Args:
      initial_value: anything that can become a tensor, or a function that gives it.
      trainable: whether tapes watch it; it is, if left out.
    """

    __array_priority__ = 100
    home: Home | None = None
    """Where it lives, if not in this process."""

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        import_scope: Any = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: Any = None,
    ) -> None:
        del validate_shape, caching_device, variable_def, import_scope
        if initial_value is None:
            raise ValueError("The `initial_value` arg to `tf.Variable` must be specified.")
        making_variable()
        value = initial_value() if callable(initial_value) else initial_value
        self._tensor = convert(value, None if dtype is None else as_dtype(dtype))
        self._shape = TensorShape(self._tensor.aval[0] if shape is None else shape)
        self.dtype: DType = self._tensor.dtype
        self.trainable = trainable is not False
        self.name = f"{name or 'Variable'}:0"
        self.constraint = constraint
        self.synchronization = synchronization
        self.aggregation = aggregation
        self.number = next(_numbers)
        if current() is not None:
            raise ValueError(
                f"tf.Variable {self.name} is made in a function that several replicas run: make it before, in "
                "`strategy.scope()`."
            )
        variable_was_made(self)

    def __trainband_tensor__(self) -> Tensor:
        return self.value()

    def read_for(self, tape: Any) -> Tensor:
        """The tensor that a tape watches."""
        del tape
        return value_of(self, self._tensor)

    def give(self, tensor: Tensor) -> None:
        """Takes a new value."""
        if not is_kept(self, tensor):
            is_behind, self._tensor = self._tensor.is_noted, tensor
            if is_behind:  # a loop that looks at nothing would become one long program
                DEFERRED.run()

    def value(self) -> Tensor:
        """The tensor that it holds now."""
        found = value_of(self, self._tensor)
        variable_was_read(self, found)
        return found

    read_value = value

    def numpy(self) -> Any:
        """The value as NumPy's."""
        return value_of(self, self._tensor).numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return value_of(self, self._tensor).__array__(dtype, copy)

    @property
    def shape(self) -> TensorShape:
        """The sizes."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """The sizes."""
        return self._shape

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Replaces the value.

        Raises:
          ValueError: the shape is another.
        """
        del use_locking, name
        new = convert(value, self.dtype)
        if not self._shape.is_compatible_with(new.aval[0]):
            raise ValueError(
                f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape {self._shape}, and "
                f"the assigned value shape {new.shape} are incompatible."
            )
        self.give(new)
        return self if read_value else None

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds to the value."""
        return self.assign(value_of(self, self._tensor) + convert(delta, self.dtype), use_locking, name, read_value)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts from the value."""
        return self.assign(value_of(self, self._tensor) - convert(delta, self.dtype), use_locking, name, read_value)

    def ref(self) -> Reference:
        """Something that stands for it in sets and as a key."""
        return Reference(self)

    def __hash__(self) -> int:
        raise TypeError("Variable is unhashable. Instead, use variable.ref() as the key.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value(), name)

    def __len__(self) -> int:
        return len(self._tensor)

    def __iter__(self) -> Any:
        return iter(self.value())

    def __bool__(self) -> bool:
        return bool(value_of(self, self._tensor))

    def __int__(self) -> int:
        return int(value_of(self, self._tensor))

    def __float__(self) -> float:
        return float(value_of(self, self._tensor))

    def __repr__(self) -> str:
        found = value_of(self, self._tensor)
        about = f"shape={tuple(found.aval[0])} dtype={self.dtype.name}"
        about += "" if found.is_traced else f", numpy={shown(found.numpy())}"
        return f"<tf.Variable '{self.name}' {about}>"
