"""Deferred computation: what a script computes is noted, and run as one compiled program when a value is needed.

A loop whose body does the same each time is compiled once: a program is found again by what was noted, not by where.
Only what somebody can still ask for is a result of it, so that the rest needs no memory of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import Checked, noting
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.where import user_line
from trainband.compat.tf2.eager.demands import Demands

MOST_PENDING = 1000
"""Noted computations after which they run even if no value is needed yet."""

MOST_AHEAD = 20
"""The most computations that run ahead of others, so that an error is raised where the script makes it."""

Aval = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape and dtype of an array."""
Call = Callable[..., Sequence[Any]]
"""A function of arrays, to several."""


class Step:
    """A computation that is noted: a function, what it is called with, and what comes out.

    Attributes:
      kind: a number that stands for the function; two steps of one number do the same.
      inputs: arrays, or results of other steps: (step, which).
      avals: of each result.
      holders: of each result, who can ask for its value.
      where: the line of the script, if there are conditions that have to be checked when the step runs.
    """

    __slots__ = ("avals", "call", "holders", "inputs", "kind", "where")

    def __init__(self, kind: int, call: Call, inputs: tuple[Any, ...], avals: Sequence[Aval]) -> None:
        self.kind = kind
        self.call = call
        self.inputs = inputs
        self.avals = avals
        self.holders: list[weakref.ref[Any]] = []
        self.where = ""


@dataclass(frozen=True, slots=True)
class _Traced:
    """What is known of a function for inputs of some shapes."""

    avals: list[Aval]
    demands: Demands | None


class Deferred:
    """The computations that are noted and have not run, and the programs that have been compiled."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pending: list[Step] = []
        self._kinds: dict[Any, int] = {}
        self._traced: dict[tuple[int, tuple[Aval, ...]], _Traced] = {}
        self._programs: dict[Any, _Program] = {}
        self.programs_run = 0
        """How many programs have run."""

    @property
    def programs_compiled(self) -> int:
        """How many different programs there have been."""
        return len(self._programs)

    def kind_of(self, key: Any) -> int:
        """The number of a function that is told by `key`."""
        with self._lock:
            return self._kinds.setdefault(key, len(self._kinds))

    def note(self, kind: int, call: Call, inputs: Sequence[Any], avals: Sequence[Aval]) -> Step:
        """Notes a computation. What it refuses is raised at once.

        Args:
          inputs: tensors.
          avals: their shapes and dtypes.
        """
        place = (kind, tuple(avals))
        found = self._traced.get(place)
        if found is None:
            with jax.enable_x64(True):
                shapes = [jax.ShapeDtypeStruct(*one) for one in avals]
                checked = Checked(call)
                closed, (results, _) = jax.make_jaxpr(checked, return_shape=True)(*shapes)
            outputs = [(one.shape, np.dtype(one.dtype)) for one in results]
            found = _Traced(outputs, Demands.of(closed, checked.messages))
            self._traced[place] = found
        demands = found.demands
        if demands is not None and demands.is_quick and self._has_values([inputs[one] for one in demands.needed]):
            demands.meet(inputs)
            demands = None
        with self._lock:
            # Only now: to see the shapes, the function may have run what is noted, and so may another thread.
            if len(self._pending) >= MOST_PENDING:
                self.run()
            step = Step(kind, call, tuple(one.input for one in inputs), found.avals)
            step.where = user_line() if demands is not None else ""
            self._pending.append(step)
        return step

    def run(self) -> None:
        """Runs what is noted.

        Raises:
          InvalidArgumentError: what an operation demands does not hold.
        """
        with self._lock:
            steps, self._pending = self._needed(), []
            self._run(steps)

    def finish(self) -> None:
        """Runs what is noted as far as it has conditions to check: nobody will ask for values any more.

        Raises:
          InvalidArgumentError: one of them does not hold.
        """
        with self._lock:
            for step in self._pending:
                step.holders = []
        self.run()

    def _run(self, steps: list[Step]) -> None:
        if not steps:
            return
        numbers = {id(step): number for number, step in enumerate(steps)}
        leaves: list[Any] = []
        places: dict[int, int] = {}
        plan: list[tuple[int, bool, tuple[Any, ...]]] = []
        for step in steps:
            codes: list[Any] = []
            for one in step.inputs:
                if isinstance(one, tuple):
                    codes.append((numbers[id(one[0])], one[1]))
                else:
                    if id(one) not in places:
                        places[id(one)] = len(leaves)
                        leaves.append(one)
                    codes.append(places[id(one)])
            plan.append((step.kind, bool(step.where), tuple(codes)))
        wanted: list[tuple[int, int]] = []
        holders: list[Any] = []
        for number, step in enumerate(steps):
            for which, ref in enumerate(step.holders):
                if (holder := ref()) is not None:
                    wanted.append((number, which))
                    holders.append(holder)
        key = (tuple(plan), tuple(wanted), tuple((one.shape, one.dtype) for one in leaves))
        if key not in self._programs:
            calls = [step.call if step.where else _unchecked(step.call) for step in steps]
            self._programs[key] = _Program(calls, [codes for *_, codes in plan], wanted)
        program = self._programs[key]
        self.programs_run += 1
        # Not a part of what this thread may be tracing: all that is noted is known.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            values, holds = program.run(leaves)
        for holder, value in zip(holders, values, strict=True):
            holder.settle(value)
        for (number, message), held in zip(program.demands, holds, strict=True):
            if not bool(held):
                raise InvalidArgumentError(None, None, f"{message} (at {steps[number].where})")

    def _has_values(self, tensors: Sequence[Any]) -> bool:
        """Whether tensors have values, after those have been computed that follow from a few whole numbers."""
        with self._lock:
            steps: dict[int, Step] = {}
            waiting = [one.input[0] for one in tensors if one.is_noted]
            while waiting:
                step = waiting.pop()
                steps[id(step)] = step
                arrays = [one for one in step.inputs if not isinstance(one, tuple)]
                if len(steps) > MOST_AHEAD or any(np.dtype(one.dtype).kind not in "iub" for one in arrays):
                    return False
                waiting += [one[0] for one in step.inputs if isinstance(one, tuple)]
            self._run([step for step in self._pending if id(step) in steps])
            for step in steps.values():
                step.where = ""
        return True

    def _needed(self) -> list[Step]:
        """The pending steps that have conditions or of which a result can be asked for, and those that they need."""
        needed: set[int] = set()
        found: list[Step] = []
        for step in reversed(self._pending):
            if id(step) in needed or step.where or any(_is_asked(ref()) for ref in step.holders):
                found.append(step)
                needed.update(id(one[0]) for one in step.inputs if isinstance(one, tuple))
        found.reverse()
        return found


def _is_asked(holder: Any) -> bool:
    """Whether somebody can still ask for a result that has not been computed."""
    return holder is not None and holder.is_noted


def _unchecked(call: Call) -> Call:
    """The function without its conditions, which have been met already."""

    def run(*arrays: Any) -> Sequence[Any]:
        with noting(None):
            return call(*arrays)

    return run


class _Program:
    """A compiled function of the leaves, to what is wanted and the conditions of its steps.

    Attributes:
      run: the function.
      demands: of each condition, the number of its step and its message, once it has run.
    """

    def __init__(self, calls: list[Call], codes: list[tuple[Any, ...]], wanted: list[tuple[int, int]]) -> None:
        self._calls, self._codes, self._wanted = calls, codes, wanted
        self.demands: list[tuple[int, str]] = []
        self.run = jax.jit(self._traced)

    def _traced(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results: list[Sequence[Any]] = []
        conditions: list[Any] = []
        self.demands = []
        for number, (call, places) in enumerate(zip(self._calls, self._codes, strict=True)):
            checked = Checked(call)
            inputs = [results[one[0]][one[1]] if isinstance(one, tuple) else leaves[one] for one in places]
            found, more = checked(*inputs)
            results.append(found)
            conditions += more
            self.demands += [(number, message) for message in checked.messages]
        return [results[number][which] for number, which in self._wanted], conditions


DEFERRED = Deferred()
"""The computations noted by this process."""
