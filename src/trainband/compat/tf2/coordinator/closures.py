"""Closures: functions that are scheduled, and what has been made of them for the workers."""

from __future__ import annotations

import itertools
import logging
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax

from trainband.compat.tf2.coordinator import jaxprs
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.arrays import aval_of, is_array, is_leaf, sendable
from trainband.compat.tf2.coordinator.feeds import Element, PerWorkerIterator
from trainband.compat.tf2.coordinator.programs import exported
from trainband.compat.tf2.coordinator.remote_value import RemoteValue
from trainband.compat.tf2.coordinator.tracing import NO_DRAWS, Elements, Traced, python_of, rehearse, trace
from trainband.compat.tf2.coordinator.updates import Division, NotDivided
from trainband.compat.tf2.coordinator.variables import Entry, Part, PsVariables
from trainband.compat.tf2.eager.captured import Update
from trainband.compat.tf2.eager.deferred import DEFERRED
from trainband.compat.tf2.eager.execute import convert, frozen
from trainband.compat.tf2.eager.function import UNTRACEABLE
from trainband.compat.tf2.eager.seeds import numbers
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.runtime.waiting import say_on_stderr

_log = logging.getLogger(__name__)


_Done = tuple[int, r.Change, tuple[tuple[int, tuple[int, int] | None], ...]]
"""A ps's record of an update: its number, the change, and the gradients it takes, with which rows of each."""


@dataclass(frozen=True, slots=True)
class _Group:
    """An output of a closure's program: a sum of terms, or some rows of it."""

    terms: list[jaxprs.Term]
    rows: tuple[int, int] | None = None

    def total(self, values: Sequence[Any]) -> Any:
        """The output, of the values of the terms."""
        parts = [value if sign > 0 else -value for (sign, _), value in zip(self.terms, values, strict=True)]
        total = sum(parts[1:], parts[0])
        return total if self.rows is None else total[self.rows[0] : self.rows[1]]


@dataclass(frozen=True, slots=True)
class Program:
    """A closure as workers know it, for elements of one kind.

    Attributes:
      definition, data: what a worker is told of it.
    """

    definition: r.DefineClosure
    data: bytes
    traced: Traced

    def inputs(self, closure: Closure) -> list[Any]:
        """What its program takes besides variables."""
        arrays = [array for several in closure.elements for one in several for array in one.arrays]
        draws = self.traced.draws
        return [*closure.inputs, *arrays, numbers(draws).array if draws else NO_DRAWS]

    def result(self, arrays: Sequence[Any]) -> Any:
        """What the function returns, of the arrays that a worker has sent."""
        rest = iter(arrays)
        leaves = [Tensor(next(rest)) if one is None else one[0] for one in self.traced.fixed]
        return jax.tree.unflatten(self.traced.structure, leaves)


@dataclass(slots=True)
class Call:
    """A function with arguments of one kind.

    Attributes:
      places, iterators: where in the arguments the arrays are, and the iterators.
      counts: of each iterator among the arguments, how many elements one run takes; `None` before it has been traced.
      programs: by the platform and the kind of the elements; `None` where the function runs in the coordinator.
    """

    function: Callable[..., Any]
    structure: Any
    fixed: list[Any]
    places: list[int]
    iterators: list[int]
    counts: list[int] | None = None
    programs: dict[Any, Program | None] = field(default_factory=dict)

    def run(self, inputs: Sequence[Tensor], elements: Sequence[Callable[[], Any]]) -> Any:
        """Calls the function, with these in place of the iterators."""
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, inputs, strict=True):
            leaves[place] = tensor
        for place, take in zip(self.iterators, elements, strict=True):
            leaves[place] = Elements(take)
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        return python_of(self.function)(*args, **kwargs)


@dataclass(slots=True)
class Closure:
    """A function that is scheduled, once."""

    call: Call
    inputs: list[Any]
    iterators: list[PerWorkerIterator]
    value: RemoteValue
    elements: list[list[Element]] = field(default_factory=list)


class Closures:
    """The closures of a coordinator.

    Args:
      variables: where those that closures use go.
      looked: called when the script sees a result.
      entering: what functions run in.
    """

    def __init__(
        self,
        variables: PsVariables,
        looked: Callable[[], None],
        entering: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._variables = variables
        self.entering = entering
        self._looked = looked
        self._calls: dict[Any, Call] = {}
        self._numbers = itertools.count()
        self._updates: dict[Any, list[_Done] | None] = {}

    def closure(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Closure:
        """A closure to be run."""
        leaves, structure = jax.tree.flatten((tuple(args), dict(kwargs)), is_leaf=_is_leaf)
        leaves = [one.get() if isinstance(one, RemoteValue) else one for one in leaves]
        places = [at for at, one in enumerate(leaves) if is_array(one)]
        inputs = [sendable(convert(leaves[at]).array) for at in places]
        iterators = [at for at, one in enumerate(leaves) if isinstance(one, PerWorkerIterator)]
        fixed = [None if is_array(one) or isinstance(one, PerWorkerIterator) else one for one in leaves]
        key = (
            _identity(function),
            structure,
            tuple(map(_identity, fixed)),
            tuple(iterators),
            tuple((one.shape, one.dtype) for one in inputs),
        )
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = Call(function, structure, fixed, places, iterators)
        return Closure(call, inputs, [leaves[at] for at in iterators], RemoteValue(self._looked))

    def count(self, closure: Closure, worker: int) -> list[int]:
        """How many elements of each iterator a run takes, which is known once it has been tried."""
        call = closure.call
        if call.counts is None and not closure.iterators:
            call.counts = []
        if call.counts is None:
            with self._variables.defining():
                if call.counts is None:
                    self._rehearse(closure, worker)
        assert call.counts is not None
        return call.counts

    def program(self, closure: Closure, platform: str) -> Program | None:
        """The program for a closure with its elements, on a platform; `None` where the coordinator is to run it."""
        key = platform, *(one.key for several in closure.elements for one in several)
        programs = closure.call.programs
        if key not in programs:
            with self._variables.defining():
                if key not in programs:
                    programs[key] = self._made(closure, platform)
        return programs[key]

    def _rehearse(self, closure: Closure, worker: int) -> None:
        """Calls a function for the first time, with the elements that come next."""
        counts = [0] * len(closure.iterators)

        def take(at: int) -> Callable[[], Any]:
            def next_one() -> Any:
                element = closure.iterators[at].feeds[worker].peek(counts[at])
                counts[at] += 1
                return jax.tree.unflatten(element.structure, map(Tensor, element.arrays))

            return next_one

        takes = [take(at) for at in range(len(counts))]
        with self.entering():
            rehearse(lambda inputs: closure.call.run(inputs, takes), closure.inputs)
        closure.call.counts = counts

    def _made(self, closure: Closure, platform: str) -> Program | None:
        flat = [one for several in closure.elements for one in several]
        inputs = [*closure.inputs, *(array for one in flat for array in one.arrays)]

        def call(tensors: list[Tensor]) -> Any:
            rest = iter(tensors)
            own = [next(rest) for _ in closure.inputs]
            filled = [
                [jax.tree.unflatten(one.structure, [next(rest) for _ in one.arrays]) for one in several]
                for several in closure.elements
            ]
            return closure.call.run(own, [iter(several).__next__ for several in filled])

        DEFERRED.run()
        try:
            if any(one.dtype.hasobject or one.dtype.kind in "SU" for one in inputs):
                raise NotImplementedError("it takes strings, which exported programs cannot")
            with self.entering():
                traced = trace(call, rehearse(call, inputs), inputs)
            return self._program(traced, inputs, platform)
        except UNTRACEABLE as exc:
            name = getattr(closure.call.function, "__name__", "a function")
            say_on_stderr(
                f"{name} runs in the coordinator, not on the workers, because it cannot be traced: "
                f"{str(exc).splitlines()[0] if str(exc) else 'its control flow depends on values'}"
            )
            _log.debug("%s cannot be traced", name, exc_info=True)
            return None

    # --- placing variables and dividing what is done

    def _program(self, traced: Traced, inputs: Sequence[Any], platform: str) -> Program:
        jaxpr = traced.closed.jaxpr
        at = traced.results + len(traced.messages)
        changes: list[r.PlannedChange] = []
        groups = [_Group([(1, one)]) for one in jaxpr.outvars[:at]]
        for update in traced.updates:
            gradients = jaxpr.outvars[at : at + len(update.gradients)]
            at += len(update.gradients)
            for ps, change, takes in self._update(update):
                changes.append(r.PlannedChange(ps, change, tuple(range(len(groups), len(groups) + len(takes)))))
                groups.extend(_Group([(1, gradients[number])], rows) for number, rows in takes)
        for variable, output in zip(traced.assigned, jaxpr.outvars[at:], strict=True):
            source = jaxpr.invars[next(n for n, one in enumerate(traced.variables) if one is variable)]
            terms = jaxprs.added(jaxpr, output, source)
            if terms == []:
                continue
            kind = r.ASSIGN if terms is None else r.ADD
            for part in self._entry(variable).parts:
                changes.append(r.PlannedChange(part.ps, r.Change(kind, (part.number,), 1), (len(groups),)))
                groups.append(_Group(terms or [(1, output)], part.rows))
        wanted = [one for group in groups for _, one in group.terms]
        used = [n for n in sorted(jaxprs.needed(jaxpr, wanted)) if n < len(traced.variables)]
        parts = [(n, part) for n in used for part in self._entry(traced.variables[n]).read_parts]
        platform, data = _exported(traced, groups, parts, platform)
        definition = r.DefineClosure(
            next(self._numbers),
            platform,
            tuple((part.ps, part.number) for _, part in parts),
            tuple(part.aval for _, part in parts),
            tuple(aval_of(one) for one in (*inputs, NO_DRAWS)),
            traced.results,
            tuple(traced.messages),
            _merged(changes),
        )
        return Program(definition, data, traced)

    def _entry(self, variable: Any) -> Entry:
        return self._variables.entry(variable) or self._variables.add(variable, [self._variables.place()])

    def _update(self, update: Update) -> list[_Done]:
        """What the ps do for an update.

        Raises:
          NotImplementedError: it cannot be divided among them.
        """
        if update.key not in self._updates:
            try:
                self._updates[update.key] = self._divided(update)
            except NotDivided:
                self._updates[update.key] = None
        found = self._updates[update.key]
        if found is None:
            raise NotImplementedError("its optimizer mixes values of several ps")
        return found

    def _divided(self, update: Update) -> list[_Done]:
        avals = [jax.ShapeDtypeStruct(*one.read_for(None).aval) for one in (*update.own, *update.used)]
        avals += [jax.ShapeDtypeStruct(*one.aval) for one in update.gradients]
        division = Division.of(update, avals)
        variables = self._variables
        together = variables.place() if division.is_mixed else None
        for number, one in enumerate(update.used):
            if variables.entry(one) is None and together is not None:
                variables.add(one, [together])
            elif variables.entry(one) is None:
                rows = variables.rows(one)
                if rows and not division.goes_by_row(number):
                    say_on_stderr(f"{one.name} is not divided: its optimizer does not treat each of its rows by itself")
                    rows = []
                variables.add(one, [variables.place() for _ in range(len(rows) or 1)], rows)
        of_used = [self._entry(one) for one in update.used]
        every = sorted({ps for one in of_used for ps in one.places})
        for one, owner in zip(update.own, division.owners, strict=True):
            if variables.entry(one) is None:
                beside = None if owner is None else of_used[owner]
                rows = [part.rows for part in beside.parts if part.rows is not None] if beside is not None else []
                variables.add(one, every if beside is None else beside.places, rows)
        division.divide([self._entry(one) for one in (*update.own, *update.used)])
        found: list[_Done] = []
        for part in division.parts:
            program = variables.define(part.ps, part.data)
            change = r.Change(r.UPDATE, part.variables, len(part.gradients), program, part.changed)
            found.append((part.ps, change, part.gradients))
        return found


def _merged(changes: Sequence[r.PlannedChange]) -> tuple[r.PlannedChange, ...]:
    """The same changes, with neighbours of one kind on one ps as one."""
    found: list[r.PlannedChange] = []
    for one in changes:
        last = next((other for other in reversed(found) if other.ps == one.ps), None)
        if last is not None and last.change.kind == one.change.kind != r.UPDATE:
            both = r.Change(
                last.change.kind,
                (*last.change.variables, *one.change.variables),
                last.change.given + one.change.given,
            )
            found[found.index(last)] = r.PlannedChange(one.ps, both, (*last.arrays, *one.arrays))
        else:
            found.append(one)
    return tuple(found)


def _exported(
    traced: Traced, groups: Sequence[_Group], parts: Sequence[tuple[int, Part]], platform: str
) -> tuple[str, bytes]:
    """The platform and the program of a closure. It takes these parts of variables, and the inputs."""
    closed = traced.closed
    jaxpr = jaxprs.giving(closed, [one for group in groups for _, one in group.terms])
    avals = [one.aval for one in closed.jaxpr.invars]
    count = len(traced.variables)

    def run(*arrays: Any) -> list[Any]:
        of_variables: dict[int, list[Any]] = {}
        for (number, _), array in zip(parts, arrays, strict=False):
            of_variables.setdefault(number, []).append(array)
        given = {
            number: several[0] if len(several) == 1 else jax.numpy.concatenate(several)
            for number, several in of_variables.items()
        }
        given |= dict(zip(range(count, len(avals)), arrays[len(parts) :], strict=True))
        filled = [given[at] if at in given else jax.numpy.zeros(a.shape, a.dtype) for at, a in enumerate(avals)]
        found = iter(jax.core.eval_jaxpr(jaxpr, closed.consts, *filled))
        return [group.total([next(found) for _ in group.terms]) for group in groups]

    shapes = [jax.ShapeDtypeStruct(part.aval.shape, part.aval.dtype) for _, part in parts] + avals[count:]
    try:
        return platform, exported(run, shapes, platform)
    except NotImplementedError:
        if platform == "cpu":
            raise
        return "cpu", exported(run, shapes, "cpu")  # what not every platform can


def _is_leaf(value: Any) -> bool:
    return is_leaf(value) or isinstance(value, PerWorkerIterator | RemoteValue) or hasattr(value, "__next__")


def _identity(value: Any) -> Any:
    """Equal for what does the same: a function that is written anew each time, too, such as a lambda in a loop."""
    if isinstance(value, types.FunctionType):
        cells = tuple(_Same(cell.cell_contents) for cell in value.__closure__ or ())
        return value.__code__, cells, frozen(value.__defaults__), frozen(value.__kwdefaults__)
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return type(value), value


class _Same:
    """Equal for the same object, which it keeps, so that no other gets its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
