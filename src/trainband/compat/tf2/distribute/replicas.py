"""Replicas: what `strategy.run` does where there are several.

In a `tf.function`, whose Python lines run when it is traced, the replicas become one program from the second call on.
Elsewhere, and where the replicas' inputs differ in shape or a value decides what is done, they run in lockstep.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.distribute.lockstep import run_in_lockstep
from trainband.compat.tf2.distribute.program import Program
from trainband.compat.tf2.distribute.values import PerReplica, flattened, is_leaf, local, regrouped
from trainband.compat.tf2.distribute.written import merge
from trainband.compat.tf2.eager.captured import Capture, capturing, is_in_function, running_function
from trainband.compat.tf2.eager.execute import convert, frozen
from trainband.compat.tf2.eager.function import UNTRACEABLE, Function, identity

_log = logging.getLogger(__name__)


class _Plan:
    """What is known of calls of one function with arguments of one kind."""

    def __init__(self, keeps: Any) -> None:
        self.keeps = keeps
        """The objects whose identities are in its key."""
        self.capture: Capture | None = None
        self.program: Program | None = None
        self.in_lockstep = False


class Replicas:
    """The replicas of a strategy.

    Args:
      strategy: it.
      count: how many are in this process.
    """

    def __init__(self, strategy: Any, count: int) -> None:
        self._strategy = strategy
        self._count = count
        self._plans: dict[Any, _Plan] = {}

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function gives on each replica."""
        leaves, structure = flattened((tuple(args), dict(kwargs)))
        uniform = all(one.uniform for one in leaves if isinstance(one, PerReplica))
        if isinstance(function, Function):
            function = function.python_function
        elif not is_in_function():
            return self._in_lockstep(function, args, kwargs, uniform)
        if not uniform:
            return self._in_lockstep(function, args, kwargs, uniform)
        kinds = [isinstance(one, PerReplica) if is_leaf(one) else None for one in leaves]
        fixed = [one if kind is None else None for one, kind in zip(leaves, kinds, strict=True)]
        inputs = [one if kind else convert(one) for one, kind in zip(leaves, kinds, strict=True) if kind is not None]
        avals = tuple(convert(one.values[0]).aval if isinstance(one, PerReplica) else one.aval for one in inputs)
        name, keeps = identity_of(function)
        key = (name, str(structure), frozen([identity(one) for one in fixed]), tuple(kinds), avals)
        plan = self._plans.setdefault(key, _Plan((function, keeps, fixed)))
        if plan.in_lockstep:
            return self._in_lockstep(function, args, kwargs, uniform)
        if plan.capture is None:
            capture = Capture()
            with capturing(capture), running_function():
                result = self._in_lockstep(function, args, kwargs, uniform)
            plan.capture = capture
            return result
        if plan.program is None:
            reads = {**plan.capture.read, **plan.capture.written}
            self._strategy.agree("compiles a function", (function.__qualname__, avals))
            plan.program = Program(self._strategy, function, structure, fixed, kinds, list(reads.values()))
        try:
            return plan.program(inputs)
        except UNTRACEABLE as exc:
            _log.debug("%s runs in lockstep: %s", function, exc)
            plan.in_lockstep, plan.program = True, None
            return self._in_lockstep(function, args, kwargs, uniform)

    def _in_lockstep(self, function: Callable[..., Any], args: Any, kwargs: Any, uniform: bool) -> Any:
        def body(number: int) -> Any:
            return function(*local(tuple(args), number), **local(dict(kwargs), number))

        results, owns = run_in_lockstep(self._strategy, self._count, body)
        merge(self._strategy, owns, self._have_examples(args, kwargs))
        return regrouped(results, uniform=uniform)

    def _have_examples(self, args: Any, kwargs: Any) -> list[bool]:
        """Of each replica, whether its inputs have rows; whether it has no inputs of its own."""
        leaves, _ = flattened((tuple(args), dict(kwargs)))
        own = [one.values for one in leaves if isinstance(one, PerReplica)]
        sizes = [[math.prod(convert(one).aval[0][:1]) for one in values] for values in zip(*own, strict=True)]
        return [any(some) for some in sizes] or [True] * self._count


def identity_of(function: Callable[..., Any]) -> tuple[Any, Any]:
    """What tells a function from others, though it be made anew each time; and what that is of, to be kept."""
    owner = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return id(function), function
    cells = [cell.cell_contents for cell in plain.__closure__ or ()]
    values = [owner, *cells, *(plain.__defaults__ or ())]
    return (code, tuple(identity(one) if isinstance(one, int | float | str) else id(one) for one in values)), values
