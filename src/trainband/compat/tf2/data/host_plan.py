"""HostPlan: a function of elements whose first part Python computes on the host, and whose rest is compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.data.blocks import Block, Leaves, Result, stacked_leaves
from trainband.compat.tf2.data.plan import Bases, Call, Plan
from trainband.compat.tf2.eager.captured import NotCaptured
from trainband.compat.tf2.eager.host_stage import Noting, Replaying, Step, hosting
from trainband.compat.tf2.eager.immediate import array_from, immediately
from trainband.compat.tf2.eager.seeds import Draws, drawing
from trainband.compat.tf2.eager.tensor import Tensor

Spread = Callable[[Callable[[Leaves], Any], Iterable[Leaves]], Iterable[Any]]
"""Applies a function to several things, in order, as `map` does."""
SLOW_S = 0.001
"""Work longer than this for an element is worth a thread."""
MOST_SHAPES = 4
"""The most shapes of the host's results for which the rest is compiled."""


class HostPlan:
    """A function that is parted so.

    Args:
      call: the function.
      leaves: of the first element, with which it runs once.

    Raises:
      NotCaptured: the host is asked nothing, or something that depends on what is compiled.
    """

    def __init__(self, call: Call, leaves: Leaves) -> None:
        self._call = call
        self._noted = Noting(leaves)
        with immediately(), drawing(Draws(np.uint32(0))), hosting(self._noted):
            call(self._noted.tensors(len(leaves)))
        self._numbers = [place for place, one in enumerate(self._noted.values) if one.dtype != object]
        self._first: list[Any] | None = self._noted.values
        self._steps: list[Step] | None = None
        self._rests: dict[Any, Plan] = {}
        self._lock = threading.Lock()
        self._rest(self._noted.values)

    def blocks(self, bases: Bases, block: Block, spread: Spread) -> list[Result]:
        """The results for some elements."""
        elements = block.elements()
        every: list[list[Any] | Exception] = []
        for leaves in elements:
            begin = time.perf_counter()
            every.append(self._hosted_or_error(leaves))
            if time.perf_counter() - begin > SLOW_S:
                break
        every += spread(self._hosted_or_error, elements)
        good = [values for values in every if not isinstance(values, Exception)]
        if len({self._kind(values) for values in good} - self._rests.keys()) > 1:
            raise TooManyShapes
        shapes = [[one.shape for one in values] for values in good]
        if len(every) == 1 or len(good) < len(every) or any(one != shapes[0] for one in shapes):
            return [one if isinstance(one, Exception) else self._one(bases, one) for one in every]
        columns = [stacked_leaves([(values[place],) for values in good])[0] for place in self._numbers]

        def hosted(place: int) -> Any:
            return stacked_leaves([(values[place],) for values in good])[0]

        return self._rest(good[0]).many(bases, len(good), columns, hosted)

    def _one(self, bases: Bases, values: Sequence[Any]) -> Result:
        try:
            return self._rest(values).one(bases, self._taken(values), values)
        except InvalidArgumentError as exc:
            return exc

    def _hosted_or_error(self, leaves: Leaves) -> list[Any] | Exception:
        try:
            return self._hosted(leaves)
        except Exception as exc:  # it is raised when its element is asked for
            return exc

    def _hosted(self, leaves: Leaves) -> list[Any]:
        """The values of the stage for an element."""
        first, self._first = self._first, None
        if first is not None and all(map(_is_same, first, leaves)):
            return first  # those of the run that was noted
        values: list[Any] = list(leaves)
        for function, inputs in self._steps or ():
            found = function(*(values[one] if isinstance(one, int) else one for one in inputs))
            values += [array_from(one) for one in found]
        return values

    def _kind(self, values: Sequence[Any]) -> Any:
        return tuple([(values[place].shape, values[place].dtype) for place in self._numbers])

    def _taken(self, values: Sequence[Any]) -> list[Any]:
        return [values[place] for place in self._numbers]

    def _rest(self, values: Sequence[Any]) -> Plan:
        """What is compiled, for values of such shapes."""
        kind = self._kind(values)
        with self._lock:
            if kind not in self._rests:
                if len(self._rests) >= MOST_SHAPES:
                    raise TooManyShapes
                self._rests[kind] = self._traced(kind)
            return self._rests[kind]

    def _traced(self, kind: Any) -> Plan:
        replays: list[Replaying] = []

        def arrange(arrays: Sequence[Any]) -> tuple[list[Tensor], Replaying]:
            replays.append(Replaying(self._noted, dict(zip(self._numbers, arrays, strict=True))))
            leaves = range(len(self._noted.values) - sum(one.size for one in self._noted.calls))
            return [replays[-1].tensor(place) for place in leaves], replays[-1]

        plan = Plan(self._call, [jax.ShapeDtypeStruct(*one) for one in kind], arrange)
        steps = replays[-1].steps
        if not steps or len(steps) != len(self._noted.calls):
            raise NotCaptured
        if self._steps is None:
            self._steps = steps
        return plan


def _is_same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(np.array_equal(one, other))


class TooManyShapes(Exception):
    """What the host gives has too many shapes to compile the rest for each."""
