"""Program: how the function of a dataset is computed, element by element in Python or for many elements at once.

Functions of numbers alone are compiled by JAX, for a whole chunk of elements at once. Others are run for each element:
text and Python's functions in Python, what NumPy can do with NumPy, so that shapes may depend on values, and what is
left between them as small compiled functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from trainband.compat.ops.checks import noting
from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.datasets.elements import Element
from trainband.compat.tf1.datasets.run import Run
from trainband.compat.tf1.graphs.effects import raise_noted
from trainband.compat.tf1.graphs.errors import InvalidArgumentError, OpError
from trainband.compat.tf1.graphs.graph import Operation, Region, Tensor
from trainband.compat.tf1.graphs.hosted import is_hosted
from trainband.compat.tf1.graphs.keys import Keys, fresh_base
from trainband.compat.tf1.graphs.lowering import FAILED, Frame, error_of
from trainband.compat.tf1.graphs.region import Body
from trainband.compat.tf1.sessions.numpy_part import failing

SIZES = (1, 16, 128)
"""How many elements may be computed at once; fewer are padded."""
MOST_BYTES = 1 << 22
"""The most bytes of elements that are computed at once."""

MOST_SHAPES = 8
"""The most shapes of elements for which a function is compiled as a whole."""


class Program:
    """The operations of a region that some outputs need, in the order in which they are run.

    Args:
      region: where they were recorded.
      arguments: the tensors that stand for the leaves of an element.
      captured: tensors from outside whose values a run has.
      outputs: what is wanted.
    """

    def __init__(
        self, region: Region, arguments: Sequence[Tensor], captured: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.arguments, self.captured, self.outputs = tuple(arguments), tuple(captured), tuple(outputs)
        self.region = region
        self.needed = _needed(region, outputs, {*arguments, *captured})
        self.computed = [tensor for tensor in dict.fromkeys(outputs) if tensor not in set(arguments)]
        """The outputs that are more than a leaf of the element."""
        self.places = [
            (True, self.arguments.index(tensor)) if tensor in self.arguments else (False, self.computed.index(tensor))
            for tensor in outputs
        ]
        self.is_pure = all(_is_pure(op) for op in self.needed) and all(t.dtype != string for t in self.computed)
        used = {tensor for op in self.needed for tensor in op.inputs} | set(self.computed)
        self.used = [i for i, tensor in enumerate(arguments) if tensor in used]
        self.given = [*(self.arguments[i] for i in self.used), *captured]
        self.compiled: dict[Any, Any] = {}
        self.constants = {op.outputs[0]: np.asarray(op.compute()[0]) for op in _constants(region, outputs)}

    @functools.cached_property
    def steps(self) -> list[Step]:
        """How one element is computed."""
        return _steps([op for op in self.needed if op.type != "Const"], self.outputs)

    def state(self, run: Run) -> Computing:
        """Its computations in a run."""
        return run.state(self, lambda: Computing(self, run))

    def together(self) -> Any:
        """The compiled function of a chunk of elements: (the used leaves stacked, captured, counters, base).

        Beside what is computed it gives, for each element, what the checks have found.
        """
        if "together" not in self.compiled:
            call = Body(self.region, self.computed).function(self.given)

            def one(leaves: Sequence[Any], captured: Sequence[Any], counter: Any, base: Any) -> Any:
                keys = Keys(jax.random.wrap_key_data(base), counter)
                found, state = call({FAILED: 0}, keys, [*leaves, *captured])
                return found, state[FAILED]

            self.compiled["together"] = jax.jit(jax.vmap(one, in_axes=(0, None, 0, None)))
        return self.compiled["together"]


class Computing:
    """A program in one run."""

    def __init__(self, program: Program, run: Run) -> None:
        self._program = program
        self._run = run
        self._captured = [run.values[tensor] for tensor in program.captured]
        self._count = 0
        self._base = fresh_base()
        self._shapes: set[Any] = set()

    @property
    def program(self) -> Program:
        """What is computed."""
        return self._program

    def one(self, element: Element) -> Element:
        """The outputs for one element."""
        if self.is_together(element):
            try:
                (found,) = self.many([element])
            except (OpError, ValueError, TypeError):  # a shape depends on a value
                self._program.is_pure = False
            else:
                if isinstance(found, OpError):
                    raise found
                return found
        program = self._program
        self._count += 1
        values = dict(program.constants)
        values.update(zip(program.arguments, element, strict=True))
        values.update(zip(program.captured, self._captured, strict=True))
        with np.errstate(all="ignore"):
            for step in program.steps:
                step(values, self._run.resources, self._count, self._base)
        return tuple([values[tensor] for tensor in program.outputs])

    def is_together(self, element: Element) -> bool:
        """Whether elements of the shapes of this one are computed many at once."""
        if not self._program.is_pure:
            return False
        self._shapes.add(tuple([element[i].shape for i in self._program.used]))
        return len(self._shapes) <= MOST_SHAPES

    def many(self, elements: Sequence[Element]) -> list[Element | OpError]:
        """The outputs for some elements of the same shapes, or the error of an element for which a check fails."""
        program, count = self._program, len(elements)
        columns: list[Any] = []
        failed: Any = []
        if program.computed:
            padded = next(size for size in SIZES if size >= count)
            leaves = [_column([element[i] for element in elements], padded) for i in program.used]
            counters = np.arange(self._count + 1, self._count + 1 + padded, dtype=np.uint32)
            self._count += count
            with jax.enable_x64(True), jax.default_device(_cpu()):
                found, failed = program.together()(leaves, self._captured, counters, self._base)
            failed = np.asarray(failed)[:count]
            columns = [np.asarray(one) for one in found]
        chosen = [
            [element[place] for element in elements] if is_leaf else _rows(columns[place], count)
            for is_leaf, place in program.places
        ]
        results: list[Element | OpError] = list(zip(*chosen, strict=True)) if chosen else [()] * count
        for place in map(int, np.flatnonzero(failed)):
            error = error_of(failed[place], program.arguments[0].graph)
            assert error is not None
            results[place] = error
        return results


def _column(values: list[Any], padded: int) -> Any:
    whole = np.empty((padded, *values[0].shape), values[0].dtype)
    if whole.ndim == 1:
        whole[: len(values)] = values
    else:
        for place, value in enumerate(values):
            whole[place] = value
    whole[len(values) :] = values[-1]
    return whole


def _rows(column: Any, count: int) -> list[Any]:
    # A copy, where a row is large: a few rows in a shuffle's buffer must not keep the whole chunk.
    rows = column[:count]
    return list(rows) if rows.nbytes <= 512 * count else [row.copy() for row in rows]


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX may be told not to have it
        return None


def _is_pure(op: Operation) -> bool:
    """Whether JAX can compute an operation for many elements at once."""
    if is_hosted(op) or op.reads or op.writes or not {"host", "asks", "effect"}.isdisjoint(op.attributes):
        return False
    return all(_is_pure(inner) for region in op.attributes.get("regions", ()) for inner in region.operations)


def _constants(region: Region, outputs: Sequence[Tensor]) -> list[Operation]:
    """All constants that the region's operations use, from outside, too."""
    tensors = [*outputs, *(tensor for op in region.operations for tensor in op.inputs)]
    return list(dict.fromkeys(tensor.op for tensor in tensors if tensor.op.type == "Const"))


def _needed(region: Region, outputs: Sequence[Tensor], given: set[Tensor]) -> list[Operation]:
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in outputs if tensor not in given]
    waiting += [op for op in region.operations if op.stateful and "effect" in op.attributes]
    while waiting:
        op = waiting.pop()
        if op in found or not region.contains(op):
            continue
        found.add(op)
        waiting += [tensor.op for tensor in op.inputs if tensor not in given]
        waiting += op.control_inputs
    return sorted(found, key=lambda op: op.number)


Step = Callable[[dict[Tensor, Any], dict[Any, Any], int, Any], None]


def _steps(needed: Sequence[Operation], outputs: Sequence[Tensor]) -> list[Step]:
    """Group operations into steps: one operation in Python, or several that are compiled together.

    An operation's level is how many times a value must have gone from Python to compiled code before it.
    """
    level: dict[Operation, int] = {}
    compiled: dict[Operation, bool] = {}
    for op in needed:
        compiled[op] = bool(op.outputs) and not op.folds and _is_pure(op)
        before = [other for other in (*(t.op for t in op.inputs), *op.control_inputs) if other in level]
        level[op] = max(
            (level[one] + (1 if compiled[one] and not compiled[op] else 0) for one in before),
            default=0,
        )
    steps: list[Step] = []
    for number in range(max(level.values(), default=-1) + 1):
        here = [op for op in needed if level[op] == number]
        steps += [_in_python(op) for op in here if not compiled[op] and (op.outputs or "effect" in op.attributes)]
        together = [op for op in here if compiled[op]]
        used = {*outputs, *(tensor for op in needed if op not in together for tensor in op.inputs)}
        if wanted := [tensor for op in together for tensor in op.outputs if tensor in used]:
            steps.append(_compiled(together, wanted))
    return steps


def _in_python(op: Operation) -> Step:
    inputs, outputs = op.inputs, op.outputs
    source, python = op.attributes.get("source"), op.attributes.get("python")
    kinds = [output.dtype.numpy for output in outputs]
    is_eager = python is None and source is None and (op.stateful or "effect" in op.attributes)

    def step(values: dict[Tensor, Any], resources: dict[Any, Any], count: int, base: Any) -> None:
        arguments = [values[tensor] for tensor in inputs]
        try:
            if source is not None:
                results = source(resources, *map(np.asarray, arguments))
            elif python is not None:
                results = python(*map(np.asarray, arguments))
            elif is_eager:
                results = _eager(op, arguments, Keys(jax.random.wrap_key_data(base), np.uint32(count)))
            else:
                with noting(failing(op)):
                    results = op.compute(*arguments)
        except (TypeError, ValueError) as exc:
            shapes = ", ".join(str(np.shape(one)) for one in arguments)
            raise InvalidArgumentError(None, op, f"{op.type} of inputs of the shapes {shapes}: {exc}") from exc
        for output, kind, result in zip(outputs, kinds, results, strict=True):
            values[output] = (
                result
                if getattr(result, "dtype", None) == kind and isinstance(result, np.ndarray | np.generic)
                else np.asarray(result, kind)
            )

    return step


def _eager(op: Operation, arguments: Sequence[Any], keys: Keys) -> Any:
    frame = Frame({FAILED: 0}, keys)
    with jax.enable_x64(True), jax.default_device(_cpu()):
        results = op.compute(frame, *arguments) if op.stateful else op.compute(*arguments)
        raise_noted()
        _raise_failed(frame.state[FAILED], op)
    return results


def _raise_failed(failed: Any, op: Operation) -> None:
    if (error := error_of(failed, op.graph)) is not None:
        raise error


def _compiled(together: Sequence[Operation], wanted: Sequence[Tensor]) -> Step:
    mine = set(together)
    given = list(dict.fromkeys(t for op in together for t in op.inputs if t.op not in mine))

    def call(arguments: Sequence[Any], count: Any, base: Any) -> tuple[list[Any], Any]:
        keys = Keys(jax.random.wrap_key_data(base), count)
        frame = Frame({FAILED: 0}, keys, dict(zip(given, arguments, strict=True)))
        return [frame.value(tensor) for tensor in wanted], frame.state[FAILED]

    jitted = jax.jit(call)
    is_dynamic = False

    def step(values: dict[Tensor, Any], resources: dict[Any, Any], count: int, base: Any) -> None:  # noqa: ARG001
        nonlocal is_dynamic
        arguments = [values[tensor] for tensor in given]
        counter = np.uint32(count)
        with jax.enable_x64(True), jax.default_device(_cpu()):
            found = None
            if not is_dynamic:
                try:
                    found = jitted(arguments, counter, base)
                except OpError:
                    is_dynamic = True  # a shape depends on a value
            if found is None:
                found = call(arguments, counter, base)
            results, failed = found
            _raise_failed(failed, wanted[0].op)
        values.update(zip(wanted, map(np.asarray, results), strict=True))

    return step
