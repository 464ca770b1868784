"""What a simulated shard holds: in place of numbers, which pushes made it.

Each block is one number, which stands for something that is noted here: a params block for the list of its updates, a
gradient's for the pushes that it is made of. So what a shard holds says exactly which pushes made it, in which order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.simulation.history import PushKey, Update
from trainband.ps.program.update_program import UpdateProgram

NUMBER = "learning_rate"
"""The number in the simulated optimizer's state."""
FIRST_NUMBER = 1.0


class _Params(NamedTuple):
    before: int
    update: Update
    number: float


class Values:
    """Of one simulated job: what its numbers stand for."""

    def __init__(self) -> None:
        self._params: list[_Params] = [_Params(0, (), 0.0)]
        self._updates: list[Update] = [()]
        self._of_params: dict[tuple[int, int, float], int] = {}
        self._of_update: dict[Update, int] = {}
        self.programs = itertools.count()
        """The numbers of the programs made for it."""

    def gradient(self, update: Update) -> float:
        """What stands for a gradient made of these pushes."""
        found = self._of_update.get(update)
        if found is None:
            found = self._of_update[update] = len(self._updates)
            self._updates.append(update)
        return float(found)

    def update_of(self, gradient: Sequence[NDArray[Any]]) -> Update:
        """The pushes that a gradient is made of."""
        return self._updates[int(gradient[0][0])]

    def updated(self, params: float, gradient: float, number: float) -> float:
        """What stands for these params after another update."""
        key = int(params), int(gradient), number
        found = self._of_params.get(key)
        if found is None:
            found = self._of_params[key] = len(self._params)
            self._params.append(_Params(key[0], self._updates[key[1]], number))
        return float(found)

    def value(self, params: Sequence[NDArray[Any]]) -> tuple[Update, ...]:
        """The updates that these params are made of."""
        updates, at = [], int(params[0][0])
        while at:
            one = self._params[at]
            updates.append(one.update)
            at = one.before
        return tuple(reversed(updates))

    def numbers(self, params: Sequence[NDArray[Any]]) -> tuple[float, ...]:
        """The number of the optimizer's state that each of those updates was made with."""
        numbers, at = [], int(params[0][0])
        while at:
            one = self._params[at]
            numbers.append(one.number)
            at = one.before
        return tuple(reversed(numbers))


class StandIn:
    """See `trainband.ps.program.compiled_program.Program`: makes the updates of a simulated shard.

    What an update may write into is written over, so that whoever still reads it finds that out.
    """

    state_shapes: tuple[tuple[int, ...], ...] = ((),)
    state_dtypes = (np.dtype(np.float32),)

    def __init__(self, values: Values, *, in_place: bool) -> None:
        self._values = values
        self.in_place = in_place

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def initialise(self, params: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        del params
        return (np.array(FIRST_NUMBER, np.float32),)

    def update(
        self,
        params: Sequence[NDArray[Any]],
        state: Sequence[NDArray[Any]],
        gradient: Sequence[NDArray[Any]],
        spare: Sequence[NDArray[Any]] | None,
        scale: float = 1.0,
        spare_state: Sequence[NDArray[Any]] | None = None,
    ) -> tuple[tuple[NDArray[Any], ...], tuple[NDArray[Any], ...]]:
        del scale
        number = float(state[0])
        new = self._values.updated(float(params[0][0]), float(gradient[0][0]), number)
        for array in (*(params if spare is None else spare), *(state if spare_state is None else spare_state)):
            array[...] = np.nan
        return (np.array([new], np.float32),), (np.array(number, np.float32),)

    def owned(self, arrays: Sequence[Any]) -> tuple[NDArray[Any], ...]:
        return tuple(np.array(array) for array in arrays)

    def room_like(self, blocks: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        return tuple(np.empty_like(block) for block in blocks)

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, NDArray[Any]]:
        array: NDArray[Any] = np.empty(shape, dtype)
        return array, array

    def mean(self, gradients: Sequence[Sequence[NDArray[Any]]], examples: Sequence[int]) -> Sequence[NDArray[Any]]:
        del examples
        update = tuple(push for gradient in gradients for push in self._values.update_of(gradient))
        return [np.array([self._values.gradient(update)], np.float32)]

    def compensated(
        self, gradient: Sequence[NDArray[Any]], now: Sequence[Any], then: Sequence[Any], factor: float
    ) -> Sequence[NDArray[Any]]:
        raise NotImplementedError("no simulated job compensates for delay")


def compile_for(values: Values) -> Any:
    """See `trainband.ps.program.compiled_program.CompileProgram`."""

    def compile_program(program: UpdateProgram, sender: str, trained: Sequence[bool], /) -> StandIn:
        del program, sender, trained
        return StandIn(values, in_place=next(values.programs) % 2 == 0)

    return compile_program


def key_of(worker: int, incarnation: str, sequence: int) -> Update:
    """A gradient that one push is all of."""
    return (PushKey(worker, incarnation, sequence),)
