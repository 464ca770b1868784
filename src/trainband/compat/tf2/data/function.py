"""The function that a script gives for elements: compiled, for many at once, or run as it stands.

A function of numbers is traced once for each kind of element. One that JAX cannot trace, because it works on text,
calls Python or decides by values, runs as it stands for each element.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.data.blocks import Block, Leaves, Raising, Result, Single
from trainband.compat.tf2.data.host_plan import HostPlan, Spread, TooManyShapes
from trainband.compat.tf2.data.passes import Pass
from trainband.compat.tf2.data.plan import SIZES, Bases, Plan
from trainband.compat.tf2.data.structure import flatten, pack, template
from trainband.compat.tf2.data.values import array_from, tensor_of
from trainband.compat.tf2.eager.immediate import immediately
from trainband.compat.tf2.eager.seeds import Draws, drawing

_log = logging.getLogger(__name__)

MOST_BYTES = 1 << 22
"""The most bytes of elements that are computed at once."""
MOST_KINDS = 8
"""The most kinds of elements, by shape, for which a function is compiled."""
OFTEN = 8
"""A kind of elements other than the first is compiled when it has been asked for more often."""
MOST_SEEN = 1000
"""The most kinds that are counted."""
APART = 4096
"""How far apart the random numbers of two elements are."""


class Mode:
    """How functions of elements run."""

    is_debugged = False
    """Whether each runs as it stands."""


class ElementFunction:
    """A function of elements, and what has been compiled of it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"A function of elements must be callable, got {function!r}.")
        self.function = function
        self._plans: dict[Any, Plan | HostPlan | None] = {}
        self._seen: dict[Any, int] = {}
        self._lock = threading.Lock()

    def call(self, structure: Any, tensors: Sequence[Any]) -> Any:
        """Calls it as a script means it: a tuple's parts are arguments of their own."""
        value = pack(structure, tensors)
        found = self.function(*value) if type(value) is tuple else self.function(value)
        return tuple(found) if isinstance(found, list) else found

    def traced(self, structure: Any, kinds: tuple[Any, ...]) -> Plan | None:
        """How elements of numbers are computed; `None`: as the function stands, or not all at once."""
        key = (repr(structure), kinds)
        with self._lock:
            if key in self._plans:
                found = self._plans[key]
                return found if isinstance(found, Plan) else None
            plan = self._made(structure, kinds)
            if plan is not None:
                self._plans[key] = plan
            return plan

    def plan(self, block: Block) -> Plan | HostPlan | None:
        """How elements of a block's kind are computed; `None`: as the function stands."""
        if Mode.is_debugged:
            return None
        parts = block.leaves if type(block) is Single else block.columns
        kinds = tuple([(shape, part.dtype) for shape, part in zip(block.shapes(), parts, strict=True)])
        key = (repr(block.structure), kinds)
        with self._lock:
            if key not in self._plans:
                if len(self._plans) >= MOST_KINDS or not self._is_worth_it(key, block):
                    return None
                self._plans[key] = self._made(block.structure, kinds) or self._parted(block)
            return self._plans[key]

    def _is_worth_it(self, key: Any, block: Block) -> bool:
        """Whether a kind is the first, or has come often enough to be compiled: images may differ in size each time."""
        if not self._plans or block.size >= OFTEN:
            return True
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen[key] = self._seen.get(key, 0) + 1
        return self._seen[key] > OFTEN

    def leave(self, plan: HostPlan) -> None:
        """Has elements of a plan's kind computed as the function stands."""
        with self._lock:
            self._plans = {key: None if one is plan else one for key, one in self._plans.items()}

    def _made(self, structure: Any, kinds: tuple[Any, ...]) -> Plan | None:
        if any(dtype.kind == "O" for _, dtype in kinds):
            return None
        try:
            return Plan(lambda tensors: self.call(structure, tensors), [jax.ShapeDtypeStruct(*kind) for kind in kinds])
        except Exception as exc:  # whatever it is, the function itself will raise it again
            _log.debug("%r is not traced: %s", self.function, exc)
            return None

    def _parted(self, block: Block) -> HostPlan | None:
        structure = block.structure
        try:
            return HostPlan(lambda tensors: self.call(structure, tensors), block.element(0))
        except Exception as exc:  # as above
            _log.debug("%r runs as it stands: %r", self.function, exc)
            return None

    def begin(self, run: Pass) -> Applied:
        """The function in a pass."""
        run.drawn += 1
        return Applied(self, (run.base + run.drawn * 0xC2B2AE35) % 2**32)


class Applied:
    """A function in one pass.

    Args:
      base: where its random numbers begin.
    """

    def __init__(self, function: ElementFunction, base: int) -> None:
        self._function = function
        self._numbers = _Numbers(base)

    def reserved(self, block: Block) -> Bases:
        """Where the random numbers of a block's elements begin, whichever thread comes to them first."""
        return self._numbers.reserved(block.size)

    def results(self, block: Block, spread: Spread = map, bases: Bases | None = None) -> list[Result]:
        """The results for at most `most` elements, in order: compiled where that is possible.

        Args:
          spread: applies what Python computes to each element.
          bases: what was `reserved` for them.
        """
        bases = bases or self._numbers
        plan = self._function.plan(block)
        if isinstance(plan, HostPlan):
            try:
                return plan.blocks(bases, block, spread)
            except TooManyShapes:
                self._function.leave(plan)
        elif plan is not None and block.size > 1:
            return plan.many(bases, block.size, block.gathered())
        call = plan.one if isinstance(plan, Plan) else functools.partial(self._as_it_stands, block.structure)
        found: list[Result] = []
        for leaves in block.elements():
            try:
                found.append(call(bases, leaves))
            except Exception as exc:  # it is raised when its element is asked for
                found.append(exc)
        return found

    def is_compiled(self, block: Block) -> bool:
        """Whether Python computes nothing of it."""
        return isinstance(self._function.plan(block), Plan)

    def most(self, block: Block) -> int:
        """How many elements of a block are computed at once: one where the function runs as it stands."""
        if self._function.plan(block) is None:
            return 1
        row = sum(column.nbytes // max(1, len(column)) for column in block.columns)
        return int(min(SIZES[-1], 1 + MOST_BYTES // (1 + row)))

    def _as_it_stands(self, structure: Any, bases: Bases, leaves: Leaves) -> Single:
        result = self.value(structure, leaves, bases)
        return Single(template(result), tuple([array_from(one) for one in flatten(result)]))

    def value(self, structure: Any, leaves: Leaves, bases: Bases | None = None) -> Any:
        """What the script's function itself gives for an element."""
        with immediately(), drawing(Draws((bases or self._numbers)(1)[0])):
            return self._function.call(structure, [tensor_of(leaf) for leaf in leaves])

    def of_element(self, structure: Any, leaves: Leaves) -> tuple[Any, Leaves]:
        """The result for one element: (its structure, its leaves)."""
        (found,) = Raising(iter(self.results(Single(structure, leaves))))
        return found.structure, found.element(0)


class _Numbers:
    """Where the random numbers of elements begin, one after the other."""

    def __init__(self, base: int, first: int = 0) -> None:
        self._base, self._first = base, first
        self._lock = threading.Lock()

    def __call__(self, count: int) -> Any:
        """Those of the next elements."""
        with self._lock:
            first = self._first
            self._first += count
        places = np.arange(first, first + count, dtype=np.uint64) * APART + self._base
        return places.astype(np.uint32)

    def reserved(self, count: int) -> _Numbers:
        """Those of so many elements, to be asked for later."""
        with self._lock:
            self._first += count
            return _Numbers(self._base, self._first - count)
