"""The variables of Keras: they hold tensors, which tapes and functions see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainband.compat.tf2.eager import operators as operators  # tensors get Python's operators
from trainband.compat.tf2.eager.captured import is_kept, is_tracing, value_of
from trainband.compat.tf2.eager.execute import cast_to, convert
from trainband.compat.tf2.eager.recording import variable_was_read
from trainband.compat.tf2.eager.replica import variable_was_made
from trainband.compat.tf2.eager.shapes import TensorShape
from trainband.compat.tf2.eager.tensor import Reference, Tensor
from trainband.compat.tf2.eager.variable import Variable
from trainband.compat.tf2.keras.inside import as_layers_see, held, keras, on_assignment, set_held
from trainband.keras.keras_internals import in_stateless_scope

_OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg abs getitem "
    "lt le gt ge"
).split()


class Shape(tuple[int | None, ...]):
    """Sizes, with the methods of a TensorShape."""

    __slots__ = ()

    def as_list(self) -> list[int | None]:
        """The sizes."""
        return list(self)

    def num_elements(self) -> int | None:
        """Their product."""
        return TensorShape(tuple(self)).num_elements()

    @property
    def rank(self) -> int:
        """How many there are."""
        return len(self)

    ndims = rank


def inside() -> bool:
    """Whether Keras computes with values of its own, and not with the variables."""
    return bool(in_stateless_scope())


def tensor_of(variable: Any) -> Tensor:
    """The tensor that a variable of Keras's holds now."""
    value = held(variable)
    if value is None and variable.home is not None:
        return value_of(variable, variable.home.pull(variable))
    if not isinstance(value, Tensor):
        value = Tensor(value)
        set_held(variable, value)
    return value_of(variable, value)


def read(variable: Any) -> Tensor:
    """The tensor of a variable, which tapes note; in Keras's own computations, the value that it has there."""
    if isinstance(variable, Variable):
        return variable.value()
    if inside():
        return Tensor(variable.value)
    found = tensor_of(variable)
    variable_was_read(variable, found)
    return found


def put(variables: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Gives variables new values, known or not."""
    for variable, tensor in zip(variables, tensors, strict=True):
        if isinstance(variable, Variable):
            variable.give(tensor)
        elif not is_kept(variable, tensor):
            set_held(variable, tensor)


def _assign(self: Any, value: Any, use_locking: bool = False, name: Any = None, read_value: bool = True) -> Any:
    del use_locking, name, read_value
    new = cast_to(value, str(self._dtype))
    if tuple(new.aval[0]) != tuple(self.shape):
        raise ValueError(
            f"Cannot assign value to variable '{self.path}': Shape mismatch. The variable shape {tuple(self.shape)}, "
            f"and the assigned value shape {new.shape} are incompatible."
        )
    put([self], [new])
    return self


def _array(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    del copy
    found = np.asarray(self.value)  # of the scope that this is in
    return found if dtype is None else found.astype(dtype)


def _assigning(original: Callable[..., Any], change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if inside() or (held(self) is None and self.home is None):
            return original(self, value.array if isinstance(value, Tensor) else value)
        return _assign(self, change(self, value), *args, **kwargs)

    return assign


def _is_kept_elsewhere(variable: Any, value: Any) -> bool:
    is_new = getattr(variable, "_value", None) is None and variable.home is None
    return not is_new and is_kept(variable, convert(value))


def _operator(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    of_tensors = getattr(Tensor, name)

    def call(self: Any, *others: Any) -> Any:
        if not inside():
            return of_tensors(read(self), *others)
        return original(self, *(one.array if isinstance(one, Tensor) else one for one in others))

    return call


def install() -> None:
    """Gives Keras's variables what those of TensorFlow have."""
    kind = keras.Variable
    kind.__trainband_tensor__ = read
    kind.read_for = lambda self, _: tensor_of(self)
    kind.give = lambda self, tensor: put([self], [tensor])
    of_value, of_shape, make = kind.value, kind.shape, kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if held(self) is not None:
            variable_was_made(self)

    kind.__init__ = init
    kind.home = None
    on_assignment(_is_kept_elsewhere)

    def value(self: Any) -> Any:
        if (self.home is not None or (is_tracing() and held(self) is not None)) and not inside():
            return as_layers_see(self, tensor_of(self).array)
        found = of_value.fget(self)
        return found.array if isinstance(found, Tensor) else found

    kind.value = property(value)

    def shape(self: Any) -> Any:
        found = of_shape.fget(self)
        return found if found is None else Shape(found)

    kind.shape = property(shape)
    kind.get_shape = lambda self: self.shape
    kind.numpy = lambda self: np.array(tensor_of(self).numpy())
    kind.__array__ = _array
    kind.read_value = read
    kind.ref = Reference
    kind.assign = _assigning(kind.assign, lambda _, new: new)
    kind.assign_add = _assigning(kind.assign_add, lambda self, by: tensor_of(self) + cast_to(by, str(self._dtype)))
    kind.assign_sub = _assigning(kind.assign_sub, lambda self, by: tensor_of(self) - cast_to(by, str(self._dtype)))
    for one in _OPERATORS:
        name = f"__{one}__"
        setattr(kind, name, _operator(name, getattr(kind, name)))


def of_keras(variable: Any) -> Any:
    """A variable of Keras's; one that stands for the variable, if it is the script's own."""
    if not isinstance(variable, Variable):
        return variable
    found = variable.__dict__.get("_of_keras")
    if found is None:
        name = variable.name.partition(":")[0].replace("/", "_")
        found = keras.Variable(np.zeros(tuple(variable.numpy().shape), variable.dtype.name), name=name)
        found.constraint = variable.constraint
        variable.__dict__["_of_keras"] = found
    return found
