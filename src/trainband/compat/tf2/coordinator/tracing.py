"""Tracing of closures: a function of tensors and variables becomes a program for workers, and changes for the ps.

A function runs once as it stands, with what it computes noted and never computed, so that it creates the variables that
it creates when it is first called. What it assigns then is forgotten. Then JAX traces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import noting
from trainband.compat.tf2.coordinator import jaxprs
from trainband.compat.tf2.coordinator.arrays import is_array, is_leaf
from trainband.compat.tf2.coordinator.records import GUARD
from trainband.compat.tf2.eager.captured import Capture, NotCaptured, Trace, Update, capturing
from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.function import Function
from trainband.compat.tf2.eager.seeds import Draws, drawing
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.runtime.overrides import override


class Rehearsal(Trace):
    """Notes which variables a function reads and assigns, and keeps what it assigns from them."""

    def __init__(self) -> None:
        super().__init__({})

    @override
    def value(self, variable: Any, own: Tensor) -> Tensor:
        found = self.values.get(id(variable))
        if found is None:
            self.read[id(variable)] = variable
            return own
        return found

    @override
    def decide(self, tensor: Tensor, place: Any) -> Any:
        return Capture.decide(self, tensor, place)

    @override
    def keep_out(self) -> None:
        Capture.keep_out(self)

    @override
    def created(self) -> None:
        """It may be: the closure itself makes none any more."""


class ClosureTrace(Trace):
    """A trace that keeps apart what optimizers do."""

    def __init__(self, values: dict[int, Tensor], decisions: Sequence[Any]) -> None:
        super().__init__(values, decisions)
        self.optimizers: list[Update] = []
        self._expected: set[int] = set()
        self._of_update: dict[int, Tensor] = {}

    @override
    def updates(self, update: Update) -> None:
        self.optimizers.append(update)
        self._expected = {id(one) for one in (*update.own, *update.used)}

    @override
    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        self._of_update.pop(id(variable), None)
        if id(variable) in self._expected:
            self._expected.discard(id(variable))
            self._of_update[id(variable)] = tensor
        return super().assigned(variable, tensor)

    def others(self) -> list[Any]:
        """The variables that were assigned, and whose value is not just an update of an optimizer."""
        return [one for key, one in self.written.items() if self._of_update.get(key) is not self.values[key]]


class Elements:
    """An iterator in a closure: each `next` is an input of its program.

    Args:
      take: gives the next element.
    """

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Any:
        return self._take()

    get_next = __next__


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced closure.

    Attributes:
      closed: the jaxpr, of the variables, the inputs, and the first number for operations that draw; it gives the
        results, a condition for each message, the gradients of each update, and the values of the variables `assigned`.
      structure, fixed: what the function returns; what is `None` in `fixed` is a result.
      draws: how many operations draw random numbers.
    """

    closed: Any
    variables: list[Any]
    structure: Any
    fixed: list[Any]
    messages: list[str]
    updates: list[Update]
    assigned: list[Any]
    draws: int

    @property
    def results(self) -> int:
        """How many arrays it returns."""
        return sum(one is None for one in self.fixed)


NO_DRAWS = np.zeros((), np.uint32)
"""In place of the first number for operations that draw, where none does."""

Call = Callable[[list[Tensor]], Any]
"""Calls a function with the tensors of its inputs."""


def rehearse(call: Call, inputs: Sequence[Any]) -> Rehearsal:
    """Runs a function without effects on variables."""
    rehearsal = Rehearsal()
    with capturing(rehearsal):
        call([Tensor(one) for one in inputs])
    return rehearsal


def trace(call: Call, rehearsal: Rehearsal, inputs: Sequence[Any]) -> Traced:
    """Traces a function that has been rehearsed, for inputs like these.

    Raises:
      one of `function.UNTRACEABLE`: it cannot be traced.
    """
    if rehearsal.is_kept_out:
        raise NotCaptured("it does what each run must do by itself, such as printing")
    variables = list({**rehearsal.read, **rehearsal.written}.values())
    known: dict[str, Any] = {}
    messages: list[str] = []
    count = len(variables)

    def run(*arrays: Any) -> list[Any]:
        conditions: list[Any] = []
        messages.clear()

        def note(condition: Any, message: str) -> None:
            conditions.append(condition)
            messages.append(message)

        values = {id(v): Tensor(array) for v, array in zip(variables, arrays[:count], strict=True)}
        traced = ClosureTrace(values, rehearsal.decisions)
        draws = Draws(arrays[-1])
        with capturing(traced), noting(note), drawing(draws):
            result = call([Tensor(one) for one in arrays[count:-1]])
        known["draws"] = draws.count
        for array, value in traced.guards:
            note((array == value).all(), GUARD)
        leaves, known["structure"] = jax.tree.flatten(result, is_leaf=is_leaf)
        known["fixed"] = [None if is_array(one) else (one,) for one in leaves]
        known["updates"] = traced.optimizers
        known["assigned"] = traced.others()
        return [
            *(convert(one).array for one in leaves if is_array(one)),
            *conditions,
            *(gradient.array for update in traced.optimizers for gradient in update.gradients),
            *(traced.values[id(one)].array for one in known["assigned"]),
        ]

    avals = [jax.ShapeDtypeStruct(*one.read_for(None).aval) for one in variables]
    avals += [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in (*inputs, NO_DRAWS)]
    with jax.enable_x64(True):
        closed = jaxprs.inlined(jax.make_jaxpr(run)(*avals), avals)
    return Traced(
        closed,
        variables,
        known["structure"],
        known["fixed"],
        list(messages),
        known["updates"],
        known["assigned"],
        known["draws"],
    )


def python_of(function: Any) -> Callable[..., Any]:
    """The function that a `tf.function` was made of; any other is itself."""
    return function.python_function if isinstance(function, Function) else function
