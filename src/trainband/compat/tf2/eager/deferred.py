"""Deferred computation: what a script computes is noted, and run as one compiled program when a value is needed.

A loop whose body does the same each time is compiled once: a program is found again by what was noted, not by where.
Only what somebody can still ask for is a result of it, so that the rest needs no memory of its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import noting
from trainband.compat.tf1.graphs.errors import InvalidArgumentError

MOST_PENDING = 1000
"""Computations after which those that are noted run, whether or not somebody asks."""

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
    """

    __slots__ = ("avals", "call", "holders", "inputs", "kind", "where")

    def __init__(self, kind: int, call: Call, inputs: tuple[Any, ...], avals: Sequence[Aval]) -> None:
        self.kind = kind
        self.call = call
        self.inputs = inputs
        self.avals = avals
        self.holders: list[weakref.ref[Any]] = []
        self.where = ""


class Deferred:
    """The computations that are noted and have not run, and the programs that have been compiled."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pending: list[Step] = []
        self._kinds: dict[Any, int] = {}
        self._avals: dict[tuple[int, tuple[Aval, ...]], list[Aval]] = {}
        self._programs: dict[Any, tuple[Any, list[str]]] = {}
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
        found = self._avals.get(place)
        if found is None:
            with jax.enable_x64(True):
                shapes = [jax.ShapeDtypeStruct(*one) for one in avals]
                found = [(one.shape, np.dtype(one.dtype)) for one in jax.eval_shape(call, *shapes)]
            self._avals[place] = found
        with self._lock:
            # Only now: to see the shapes, the function may have run what is noted, and so may another thread.
            if len(self._pending) >= MOST_PENDING:
                self.run()
            step = Step(kind, call, tuple(one.input for one in inputs), found)
            self._pending.append(step)
        return step

    def run(self) -> None:
        """Runs what is noted.

        Raises:
          InvalidArgumentError: what an operation demands does not hold.
        """
        with self._lock:
            steps, self._pending = self._needed(), []
            if not steps:
                return
            numbers = {id(step): number for number, step in enumerate(steps)}
            leaves: list[Any] = []
            places: dict[int, int] = {}
            plan: list[tuple[int, tuple[Any, ...]]] = []
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
                plan.append((step.kind, tuple(codes)))
            wanted: list[tuple[int, int]] = []
            holders: list[Any] = []
            for number, step in enumerate(steps):
                for which, ref in enumerate(step.holders):
                    if (holder := ref()) is not None:
                        wanted.append((number, which))
                        holders.append(holder)
            key = (tuple(plan), tuple(wanted), tuple((one.shape, one.dtype) for one in leaves))
            if key not in self._programs:
                self._programs[key] = _program([step.call for step in steps], [codes for _, codes in plan], wanted)
            program, messages = self._programs[key]
            self.programs_run += 1
            # Not a part of what this thread may be tracing: all that is noted is known.
            with jax.enable_x64(True), jax.ensure_compile_time_eval():
                values, holds = program(leaves)
            for holder, value in zip(holders, values, strict=True):
                holder.settle(value)
        failed = [message for message, held in zip(messages, holds, strict=True) if not bool(held)]
        if failed:
            raise InvalidArgumentError(None, None, failed[0])

    def _needed(self) -> list[Step]:
        """The pending steps of which a result can be asked for, and those that they need, in order."""
        needed: set[int] = set()
        found: list[Step] = []
        for step in reversed(self._pending):
            if id(step) in needed or any(ref() is not None for ref in step.holders):
                found.append(step)
                needed.update(id(one[0]) for one in step.inputs if isinstance(one, tuple))
        found.reverse()
        return found


def _program(calls: list[Call], codes: list[tuple[Any, ...]], wanted: list[tuple[int, int]]) -> tuple[Any, list[str]]:
    """A compiled function of the leaves, and the messages of the conditions that it gives besides."""
    messages: list[str] = []

    def run(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        conditions: list[Any] = []
        messages.clear()

        def note(condition: Any, message: str) -> None:
            conditions.append(condition)
            messages.append(message)

        results: list[Sequence[Any]] = []
        with noting(note):
            for call, places in zip(calls, codes, strict=True):
                inputs = [results[one[0]][one[1]] if isinstance(one, tuple) else leaves[one] for one in places]
                results.append(call(*inputs))
        return [results[number][which] for number, which in wanted], conditions

    return jax.jit(run), messages


DEFERRED = Deferred()
"""What this process has noted."""
