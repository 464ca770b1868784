"""What a traced function captures: the variables that it reads and those that it assigns, and how it decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainband.compat.tf2.eager.deciding import OPEN as _DECIDING
from trainband.compat.tf2.eager.deciding import Place
from trainband.compat.tf2.eager.tensor import SMALL, Tensor


class NotCaptured(Exception):
    """A trace has come to something that it cannot keep: a variable that it does not know, or an effect."""


class NotSingleton(ValueError):
    """A function makes a variable each time that it is called."""


class Home(Protocol):
    """Where a variable lives that is not in this process: its attribute `home`."""

    def pull(self, variable: Any) -> Tensor:
        """The value that it has there."""
        ...

    def push(self, variable: Any, tensor: Tensor) -> None:
        """Gives it a value there."""
        ...


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer is about to do: `run(values of own and used, gradients)` gives new values of (used, own).

    Attributes:
      key: equal for two updates by the same function.
    """

    key: Any
    run: Callable[[list[Any], Any], Any]
    own: Sequence[Any]
    used: Sequence[Any]
    gradients: Sequence[Tensor]


class Capture:
    """Notes which variables are read and assigned, and what is decided."""

    def __init__(self) -> None:
        self.read: dict[int, Any] = {}
        """The variables that were read before they were assigned, by identity."""
        self.written: dict[int, Any] = {}
        """The variables that were assigned."""
        self.decisions: list[tuple[Place, Any]] = []
        """Where the script asked for values, and what they were."""
        self.operations: dict[tuple[str, Place], list[Sequence[Tensor] | None]] = {}
        """The inputs of each operation at a place of the script, as often as it ran, where these are few numbers."""
        self.is_kept_out = False
        """Whether something was done that a trace would leave out."""

    def value(self, variable: Any, own: Tensor) -> Tensor | None:
        """The value of a variable; `None` where it is its own."""
        del own
        if id(variable) not in self.written:
            self.read[id(variable)] = variable
        return None

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        """A variable is assigned. Returns whether the variable itself is to be left as it is."""
        del tensor
        self.written[id(variable)] = variable
        return False

    def updates(self, update: Update) -> None:
        """An optimizer is about to assign variables."""

    def decide(self, tensor: Tensor, place: Place) -> Any:
        """The value of a tensor."""
        value = tensor.numpy()
        self.decisions.append((place, value))
        return value

    def runs(self, operation: str, inputs: Sequence[Tensor], place: Place) -> None:
        """An operation is to run."""
        are_few = all(not one.dtype.is_floating and np.prod(one.aval[0], dtype=int) <= SMALL for one in inputs)
        self.operations.setdefault((operation, place), []).append(list(inputs) if are_few else None)

    def values_of(self, operation: str, inputs: Sequence[Tensor], place: Place) -> list[Any] | None:
        """Nothing: inputs have values of their own."""
        del operation, inputs, place
        return None

    def keep_out(self) -> None:
        """Something is done that a trace would leave out."""
        self.is_kept_out = True

    def created(self) -> None:
        """A variable is made."""


class Trace(Capture):
    """Gives the variables that are known the values of a trace, and decides as a call before.

    Args:
      values: of the variables, by identity.
      decisions: of the call; `None` where nothing is decided by what is traced.
      before: the operations of the call, with their inputs.
    """

    def __init__(
        self,
        values: dict[int, Tensor],
        decisions: Sequence[tuple[Place, Any]] | None = None,
        before: Mapping[tuple[str, Place], Sequence[Sequence[Tensor] | None]] | None = None,
    ) -> None:
        super().__init__()
        self._noted_before = before or {}
        self._counts: dict[tuple[str, Place], int] = {}
        self._follows = decisions is not None
        self.values = values
        self.guards: list[tuple[Any, Any]] = []
        """What is traced that was decided by, and which value it must have."""
        self._to_come = list(decisions or ())[::-1]

    def value(self, variable: Any, own: Tensor) -> Tensor:
        del own
        if id(variable) not in self.values:
            raise NotCaptured
        return self.values[id(variable)]

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        super().assigned(variable, tensor)
        self.values[id(variable)] = tensor
        return True

    def decide(self, tensor: Tensor, place: Place) -> Any:
        if not self._follows and not tensor.is_traced:
            return tensor.numpy()
        if not self._to_come:
            raise NotCaptured
        where, value = self._to_come.pop()
        if where != place or np.shape(value) != tensor.aval[0] or np.asarray(value).dtype != tensor.aval[1]:
            raise NotCaptured
        if tensor.is_traced:
            self.guards.append((tensor.array, value))
        elif not np.array_equal(np.asarray(tensor.numpy()), np.asarray(value), equal_nan=value.dtype.kind in "fc"):
            raise NotCaptured
        return value

    def runs(self, operation: str, inputs: Sequence[Tensor], place: Place) -> None:
        del inputs
        self._counts[operation, place] = self._counts.get((operation, place), 0) + 1

    def values_of(self, operation: str, inputs: Sequence[Tensor], place: Place) -> list[Any] | None:
        """The values that the inputs had in the call before."""
        seen, number = self._noted_before.get((operation, place), ()), self._counts.get((operation, place), 0) - 1
        tensors = seen[number] if 0 <= number < len(seen) else None
        if tensors is None or [one.aval for one in tensors] != [one.aval for one in inputs]:
            return None
        values = [np.asarray(one.array) for one in tensors]
        self.guards += [(one.array, value) for one, value in zip(inputs, values, strict=True) if one.is_traced]
        return values

    def keep_out(self) -> None:
        raise NotCaptured

    def created(self) -> None:
        raise NotSingleton(
            "tf.function only supports singleton tf.Variables created on the first call. Make sure the tf.Variable is "
            "only created once or created outside tf.function."
        )


class _Open(threading.local):
    def __init__(self) -> None:
        self.captures: list[Capture] = []
        self.functions = 0


_open = _Open()


@contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Tells `capture` of what is read, assigned and decided inside."""
    _open.captures.append(capture)
    _DECIDING.deciders.append(capture)
    try:
        yield
    finally:
        _DECIDING.deciders.pop()
        _open.captures.pop()


@contextmanager
def left(capture: Capture) -> Iterator[None]:
    """What is inside is not told to `capture`, which is the innermost."""
    assert _open.captures[-1] is capture
    _open.captures.pop()
    decider = _DECIDING.deciders.pop()
    try:
        yield
    finally:
        _DECIDING.deciders.append(decider)
        _open.captures.append(capture)


def opened() -> tuple[list[Capture], int]:
    """What this thread is in, for another one that goes on with it."""
    return list(_open.captures), _open.functions


def open_all(what: tuple[list[Capture], int]) -> None:
    """Has this thread be in what another one was in."""
    _open.captures, _open.functions = list(what[0]), what[1]
    _DECIDING.deciders = list(_open.captures)


@contextmanager
def running_function() -> Iterator[None]:
    """What is inside is the body of a `tf.function`, as it stands."""
    _open.functions += 1
    try:
        yield
    finally:
        _open.functions -= 1


def is_in_function() -> bool:
    """Whether the body of a `tf.function` runs as it stands in this thread."""
    return _open.functions > 0


def is_tracing() -> bool:
    """Whether a function is being traced in this thread."""
    return any(isinstance(one, Trace) for one in _open.captures)


def is_capturing() -> bool:
    """Whether a function is being traced in this thread, or runs to be traced later."""
    return bool(_open.captures)


def keep_out_of_traces() -> None:
    """Says that what is done now is done each time: a function that does it runs as it stands.

    Raises:
      NotCaptured: a function is being traced.
    """
    for capture in _open.captures:
        capture.keep_out()


def making_variable() -> None:
    """Says that a variable is made.

    Raises:
      NotSingleton: a function is being traced.
    """
    for capture in _open.captures:
        capture.created()


def value_of(variable: Any, own: Tensor) -> Tensor:
    """The value of a variable, whose own is `own`, in what is being captured."""
    found = own
    for capture in _open.captures:
        known = capture.value(variable, found)
        found = found if known is None else known
    if found is own and variable.home is not None:
        found = variable.home.pull(variable)
    return found


def is_kept(variable: Any, tensor: Tensor) -> bool:
    """Tells that a variable is assigned. Returns whether the value is kept elsewhere: by a trace, or at its home."""
    if max([capture.assigned(variable, tensor) for capture in _open.captures], default=False):
        return True
    if variable.home is not None:
        variable.home.push(variable, tensor)
        return True
    return False


def note_update(update: Update) -> None:
    """Tells that an optimizer is about to assign variables."""
    for capture in _open.captures:
        capture.updates(update)
