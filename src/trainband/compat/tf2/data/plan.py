"""Plan: a function of elements that has been traced, and is compiled for one element or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from trainband.compat.ops.checks import Checked
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.data.blocks import Block, Result, Single
from trainband.compat.tf2.data.structure import flatten, template
from trainband.compat.tf2.data.values import array_from, is_dataset
from trainband.compat.tf2.eager.captured import NotCaptured, Trace, capturing
from trainband.compat.tf2.eager.execute import TENSORS, convert
from trainband.compat.tf2.eager.host_stage import HostTensor, Stage, hosting
from trainband.compat.tf2.eager.immediate import cpu, immediately
from trainband.compat.tf2.eager.seeds import Draws, drawing
from trainband.compat.tf2.eager.tensor import Tensor

SIZES = (1, 16, 128)
"""How many elements are computed at once; fewer are padded."""

Call = Callable[[Sequence[Any]], Any]
"""The function, of the tensors of an element's leaves."""
Bases = Callable[[int], Any]
"""Returns where the random numbers of this many elements begin."""
Arrange = Callable[[Sequence[Any]], tuple[list[Tensor], Stage | None]]
"""Of what is traced, the tensors of the element's leaves, and what takes calls of the host's functions."""

_BASE = jax.ShapeDtypeStruct((), np.uint32)
_NO_BASE = np.uint32(0)


class _Reading(Trace):
    """Gives variables their own values, and notes which these are. None may be assigned."""

    def __init__(self, values: dict[int, Tensor]) -> None:
        super().__init__(values)
        self.found: dict[int, Any] = {}

    def value(self, variable: Any, own: Tensor) -> Tensor:
        if id(variable) in self.values:
            return self.values[id(variable)]
        self.found[id(variable)] = variable
        return Tensor(np.asarray(own.array))

    def assigned(self, variable: Any, tensor: Tensor) -> bool:
        del variable, tensor
        raise NotCaptured


def _own(variable: Any) -> Tensor:
    """The value of a variable."""
    tensor: Tensor = variable.read_for(None)
    return tensor


def _plainly(arrays: Sequence[Any]) -> tuple[list[Tensor], None]:
    return [Tensor(one) for one in arrays], None


class Plan:
    """A function that has been traced for elements of one kind.

    Args:
      call: the function.
      avals: of what it is traced with.
      arrange: see `Arrange`; the leaves themselves are traced if it is left out.

    Attributes:
      structure: of the results.
      outputs: of each result where it comes from: ("leaf", which) of what is traced, ("host", which) of the host's
        values, ("fixed", array) or ("computed", which).
      avals: of what is computed.
      messages: of the conditions that come after what is computed.
    """

    def __init__(self, call: Call, avals: Sequence[Any], arrange: Arrange = _plainly) -> None:
        self.structure: Any = None
        self.outputs: list[tuple[str, Any]] = []
        self.messages: list[str] = []
        self._draws = False
        self._reads: list[Any] = []
        while True:
            closed, found = self._trace(call, avals, arrange)
            if not found:
                break
            self._reads += found
        count = len(closed.out_avals) - len(self.messages)
        self.avals = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in closed.out_avals[:count]]
        one = jaxpr_as_fun(closed)

        def run(base: Any, reads: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
            return one(base, *reads, *leaves)  # type: ignore[no-any-return]

        self._one = jax.jit(run)
        self._many = jax.jit(jax.vmap(run, in_axes=(0, None, 0)))

    def _trace(self, call: Call, avals: Sequence[Any], arrange: Arrange) -> tuple[Any, list[Any]]:
        reads = self._reads
        found: list[Any] = []

        def run(base: Any, *arrays: Any) -> list[Any]:
            held, leaves = arrays[: len(reads)], arrays[len(reads) :]
            trace = _Reading({id(one): Tensor(array) for one, array in zip(reads, held, strict=True)})
            draws = Draws(base)
            tensors, stage = arrange(leaves)
            checked = Checked(call)
            with capturing(trace), drawing(draws), nullcontext() if stage is None else hosting(stage):
                result, conditions = checked(tensors)
            self.messages = checked.messages
            self.structure = template(result)
            self._draws = draws.count > 0
            self.outputs = []
            computed: list[Any] = []
            for value in flatten(result):
                self.outputs.append(_output(value, leaves, computed))
            found[:] = list(trace.found.values())
            return [*computed, *conditions]

        with immediately():
            held = [jax.ShapeDtypeStruct(*_own(one).aval) for one in reads]
            return jax.make_jaxpr(run)(_BASE, *held, *avals), list(found)

    def one(self, bases: Bases, leaves: Sequence[Any], hosted: Sequence[Any] = ()) -> Single:
        """The results for one element: for what was traced, and the values of the host.

        Raises:
          InvalidArgumentError: a condition does not hold.
        """
        base = bases(1)[0] if self._draws else _NO_BASE
        computed, holds = self._computed(self._one, base, leaves)
        for held, message in zip(holds, self.messages, strict=True):
            if not held:
                raise InvalidArgumentError(None, None, message)
        made = {"leaf": leaves, "host": hosted, "computed": computed}
        found = [place if source == "fixed" else made[source][place] for source, place in self.outputs]
        return Single(self.structure, tuple(found))

    def many(self, bases: Bases, count: int, columns: Sequence[Any], hosted: Any = None) -> list[Result]:
        """The results for several elements, in order; `hosted` gives the column of a value of the host."""
        padded = next(size for size in SIZES if size >= count)
        computed: Sequence[Any] = []
        holds: Sequence[Any] = []
        if self.avals or self.messages:
            filled = columns
            if padded != count:
                filled = [np.concatenate([one, np.repeat(one[-1:], padded - count, axis=0)]) for one in columns]
            every = bases(padded) if self._draws else np.zeros(padded, np.uint32)
            values, conditions = self._computed(self._many, every, filled)
            computed, holds = [one[:count] for one in values], [one[:count] for one in conditions]
        found = []
        for source, place in self.outputs:
            if source == "fixed":
                found.append(np.broadcast_to(place, (count, *place.shape)))
            else:
                found.append(hosted(place) if source == "host" else (columns if source == "leaf" else computed)[place])
        return self._without_failed(Block(self.structure, tuple(found)), holds)

    def _without_failed(self, block: Block, holds: Sequence[Any]) -> list[Result]:
        """The elements of a block, with an error in place of each of which a condition does not hold."""
        if not holds:
            return [block]
        found: list[Result] = []
        begin = 0
        for place in map(int, np.flatnonzero(~np.all(holds, axis=0))):
            if place > begin:
                found.append(block.part(begin, place))
            message = next(one for one, held in zip(self.messages, holds, strict=True) if not held[place])
            found.append(InvalidArgumentError(None, None, message))
            begin = place + 1
        if begin < block.size:
            found.append(block.part(begin, block.size))
        return found

    def _computed(self, program: Any, base: Any, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(what is computed, the conditions)."""
        if not self.avals and not self.messages:
            return [], []
        reads = [_own(one).array for one in self._reads]
        with jax.enable_x64(True), jax.default_device(cpu()):
            found = [np.asarray(one) for one in program(base, reads, leaves)]
        return found[: len(self.avals)], found[len(self.avals) :]


def _output(value: Any, leaves: Sequence[Any], computed: list[Any]) -> tuple[str, Any]:
    """Where a result comes from; if it is computed, it is added to `computed`."""
    if isinstance(value, HostTensor):
        return "host", value.place
    if not (TENSORS.is_tensor(value) or isinstance(value, list)):
        return "fixed", _fixed(value)
    array = convert(value).array
    which = next((place for place, leaf in enumerate(leaves) if leaf is array), None)
    if which is not None:
        return "leaf", which
    if not isinstance(array, jax.core.Tracer):
        return "fixed", _fixed(array)
    computed.append(array)
    return "computed", len(computed) - 1


def _fixed(value: Any) -> Any:
    array = array_from(value)
    if is_dataset(array):
        raise NotCaptured
    return array
