"""Path: what a traced function does where it decides in one way, and how a call tells that it does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import check, noting
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.captured import Capture, Trace, capturing
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import compute, convert
from trainband.compat.tf2.eager.logits import function_call
from trainband.compat.tf2.eager.recording import variable_was_read
from trainband.compat.tf2.eager.seeds import Draws, drawing, numbers
from trainband.compat.tf2.eager.tensor import Tensor


def is_leaf(value: Any) -> bool:
    """Whether it is a tensor, or stands for one."""
    return isinstance(value, Tensor) or hasattr(value, "__trainband_tensor__")


class Path:
    """A trace: what a function does where it decides in one way.

    Args:
      reads: the variables that are inputs, before the arguments.
      capture: of a call before, which decides for the trace.
    """

    def __init__(self, reads: Sequence[Any], capture: Capture) -> None:
        self.reads = list(reads)
        self._capture: Capture | None = capture
        self.jaxpr: Any = None
        self.structure: Any = None
        self.fixed: list[Any] = []
        self.writes: list[Any] = []
        self.guards: list[Any] = []
        self.messages: list[str] = []
        self.draws = 0
        """How many operations draw random numbers."""

    def trace(self, call: Callable[[Sequence[Any]], Any], inputs: Sequence[Tensor]) -> None:
        """Traces a function of the arguments' arrays, once."""
        capture, self._capture = self._capture, None
        assert capture is not None

        def run(base: Any, *arrays: Any) -> list[Any]:
            draws = Draws(base)
            held = arrays[: len(self.reads)]
            known = {id(v): Tensor(array) for v, array in zip(self.reads, held, strict=True)}
            trace = Trace(known, capture.decisions, capture.operations)
            conditions: list[Any] = []

            def note(condition: Any, message: str) -> None:
                conditions.append(condition)
                self.messages.append(message)

            with capturing(trace), noting(note), drawing(draws), function_call():
                result = call(arrays[len(self.reads) :])
            self.draws = draws.count
            found, self.structure = jax.tree.flatten(result, is_leaf=is_leaf)
            self.fixed = [None if _is_computed(one) else _as_tensor(one) for one in found]
            self.writes = list(trace.written.values())
            self.guards = [value for _, value in trace.guards]
            results = [convert(one).array for one in found if _is_computed(one)]
            written = [trace.values[id(variable)].array for variable in self.writes]
            return [*results, *written, *(array for array, _ in trace.guards), *conditions]

        given = [_NO_DRAWS, *(_own(variable) for variable in self.reads), *inputs]
        with jax.enable_x64(True):
            self.jaxpr = jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*one.aval) for one in given))

    def run(self, inputs: Sequence[Tensor], *, is_only: bool) -> tuple[bool, Any]:
        """Whether the function decides in this way, and then what it gives; the variables have their new values."""
        held = [_own(variable) for variable in self.reads]
        given = [numbers(self.draws) if self.draws else _NO_DRAWS, *held, *inputs]
        if self.guards and not is_only and not self._decides(given):
            return False, None
        for variable, tensor in zip(self.reads, held, strict=True):
            variable_was_read(variable, tensor)
        jaxpr, messages = self.jaxpr, self.messages

        def call(*arrays: Any) -> Sequence[Any]:
            found = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arrays)
            if not self.guards:  # else it may be another path's business
                for condition, message in zip(found[len(found) - len(messages) :], messages, strict=True):
                    check(itertools.repeat(condition).__next__, message)
            return found

        results = compute(("function", id(jaxpr)), call, given)
        ends = len(results) - len(messages)
        begins = ends - len(self.guards)
        if self.guards and is_only and not self._agree(results[begins:ends]):
            return False, None
        if self.guards:
            for condition, message in zip(results[ends:], messages, strict=True):
                if not bool(condition.numpy()):
                    raise InvalidArgumentError(None, None, message)
        count = begins - len(self.writes)
        for variable, tensor in zip(self.writes, results[count:begins], strict=True):
            variable.give(tensor)
        if self.writes:
            DEFERRED.run()  # else a loop that looks at nothing would become one long program
        rest = iter(results[:count])
        return True, jax.tree.unflatten(self.structure, [next(rest) if one is None else one for one in self.fixed])

    def _decides(self, given: Sequence[Tensor]) -> bool:
        jaxpr, ends = self.jaxpr, len(self.jaxpr.jaxpr.outvars) - len(self.messages)

        def call(*arrays: Any) -> Sequence[Any]:
            found = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arrays)
            return found[ends - len(self.guards) : ends]

        return self._agree(compute(("guards", id(jaxpr)), call, given, flat=True))

    def _agree(self, found: Sequence[Tensor]) -> bool:
        return all(np.array_equal(one.numpy(), value) for one, value in zip(found, self.guards, strict=True))


_NO_DRAWS = Tensor(np.uint32(0))
"""In place of the first number of operations that draw, where none does."""


def _as_tensor(value: Any) -> Any:
    """A tensor in place of a number or array; anything else as it is."""
    return convert(value) if isinstance(value, bool | int | float | complex | np.ndarray | np.generic) else value


def as_tensors(result: Any) -> Any:
    """What a function gives, with tensors for whatever JAX and NumPy have."""
    return jax.tree.map(_as_tensor, result, is_leaf=is_leaf)


def _is_computed(value: Any) -> bool:
    return is_leaf(value) or isinstance(value, jax.Array | jax.core.Tracer)


def _own(variable: Any) -> Tensor:
    tensor: Tensor = variable.read_for(None)
    return tensor
