"""From recorded operations to one pure function that JAX compiles: what to run, in which order, and how."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import NEEDS_VALUE, is_computed, with_value
from trainband.compat.ops.checks import noting
from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Graph, Operation, Region, Tensor
from trainband.compat.tf1.graphs.hosted import is_hosted
from trainband.compat.tf1.graphs.keys import Keys

FAILED = "/failed"
"""The name in a frame's state of what its checks have found: 0, or 1 and the number of the operation that failed, and
`MOST_OPERATIONS` times the number of what it demands."""
MOST_OPERATIONS = 1 << 20
"""More operations than a graph has."""


MOST_DETERMINED = 1 << 12
"""The most elements of a value that a program is compiled for."""


class Undetermined(InvalidArgumentError):
    """A shape depends on values that are computed.

    Attributes:
      located: the operation that needs the values.
      tensors: what has to be known so that it can be compiled; none, where the values are of a loop.
    """

    def __init__(self, op: Operation, computed: Sequence[Tensor], message: str) -> None:
        super().__init__(None, op, f"{op.type}: {message.partition(chr(10))[0]}")
        self.located = op
        sizes = [tensor for tensor in computed if _may_be_sizes(tensor)]
        sizes = sizes or [tensor for tensor in computed if tensor.shape.num_elements() == 1]
        self.tensors = list(dict.fromkeys(root for tensor in sizes for root in _roots(tensor)))


def _may_be_sizes(tensor: Tensor) -> bool:
    elements = tensor.shape.num_elements()
    return tensor.dtype.is_integer and (elements is None or elements <= MOST_DETERMINED)


def _roots(tensor: Tensor) -> list[Tensor]:
    """The tensors outside of branches and loops from which a tensor follows."""
    if tensor.op.region is None:
        return [tensor]
    return [root for one in tensor.op.inputs for root in _roots(one)]


class Schedule:
    """The operations that some fetches need, and the order of those whose order matters.

    Everything that changes a variable comes after everything that does not, unless the script orders it otherwise by
    data or control dependencies. So a run that reads and changes a variable without saying in which order reads what
    it was before; TensorFlow leaves this undefined.

    Args:
      fetches: tensors and operations.
      fed: tensors whose values are given.
      region: the region that all of it belongs to: `None` for the graph itself.
      done: operations that have run; what is needed of their outputs is among `fed`.
    """

    def __init__(
        self,
        fetches: Iterable[Tensor | Operation],
        fed: Collection[Tensor],
        region: Region | None = None,
        done: Collection[Operation] = (),
    ) -> None:
        self.fed = frozenset(fed)
        roots = [one if isinstance(one, Operation) else one.op for one in fetches if one not in self.fed]
        self.needed = needed_operations(roots, self.fed, region, done)
        self.ordered = [
            op for op in _ordered(self.needed, self.fed) if op.early or (op.stateful and not op.attributes.get("pure"))
        ]
        # Those that only control dependencies ask for. A derivative that goes through one runs it, and comes first.
        self.shown = [op for op in self.needed if "effect" in op.attributes and not op.stateful]
        self.reads = _read_first(self.ordered, self.needed)
        self.writes = {variable.op_name: variable for op in self.needed for variable in op.writes}
        self.is_random = any(has(op, "seed") for op in self.needed)
        self.has_effects = any(has(op, "effect") for op in self.needed)
        self.has_loops = any(has(op, "uncounted") for op in self.needed)


def _read_first(ordered: Sequence[Operation], needed: Sequence[Operation]) -> dict[str, Any]:
    """The variables whose values from before are looked at: those that are not given one before they are read."""
    found: dict[str, Any] = {}
    written: set[str] = set()
    in_order = set(ordered)
    for op in (*ordered, *(op for op in needed if op not in in_order)):
        found |= {variable.op_name: variable for variable in op.reads if variable.op_name not in written}
        written |= {variable.op_name for variable in op.writes}
    return found


def has(op: Operation, attribute: str) -> bool:
    """Whether an operation, or one inside it, has an attribute."""
    return attribute in op.attributes or any(
        has(inner, attribute) for region in op.attributes.get("regions", ()) for inner in region.operations
    )


def needed_operations(
    roots: Iterable[Operation], fed: Collection[Tensor], region: Region | None, done: Collection[Operation] = ()
) -> list[Operation]:
    """The operations of a region that have to run before some of them can."""
    found: dict[Operation, None] = {}
    waiting = list(roots)
    while waiting:
        op = waiting.pop()
        if op in found or op in done or is_hosted(op) or (region is not None and not region.contains(op)):
            continue
        if region is None and op.region is not None:
            raise InvalidArgumentError(
                None, op, f"{op.name} is inside a branch of a cond or a loop's body, and has a value only there."
            )
        found[op] = None
        waiting += [tensor.op for tensor in op.inputs if tensor not in fed]
        waiting += op.control_inputs
    return list(found)


def _ordered(needed: Sequence[Operation], fed: Collection[Tensor]) -> list[Operation]:
    """Return a topological order in which writes come as late as possible."""
    here = set(needed)
    before = {
        op: {t.op for t in op.inputs if t not in fed and t.op in here} | (set(op.control_inputs) & here)
        for op in needed
    }
    after: dict[Operation, list[Operation]] = {op: [] for op in needed}
    for op, those in before.items():
        for other in those:
            after[other].append(op)
    left = {op: len(those) for op, those in before.items()}

    def rank(op: Operation) -> tuple[int, int, Operation]:
        return (1 if op.writes else 0, op.number, op)

    ready = [rank(op) for op, count in left.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        op = heapq.heappop(ready)[2]
        order.append(op)
        for follower in after[op]:
            left[follower] -= 1
            if left[follower] == 0:
                heapq.heappush(ready, rank(follower))
    return order


class Frame:
    """The values of tensors while operations are traced.

    Args:
      state: the values of variables by name; it is changed.
      keys: for random numbers.
      values: of tensors that are known.
      outer: the frame that has the values of all tensors except those of `inner` operations.
      inner: the operations to compute again here; all, if `None`.
      added: what is added to tensors that are computed here, so that a derivative by them can be taken.
    """

    def __init__(
        self,
        state: dict[str, Any],
        keys: Keys | None,
        values: Mapping[Tensor, Any] | None = None,
        outer: Frame | None = None,
        inner: Collection[Operation] | None = None,
        added: Mapping[Tensor, Any] | None = None,
    ) -> None:
        self.state = state
        self.keys = keys
        self.values: dict[Tensor, Any] = dict(values or {})
        self.pushes: dict[str, Any] | None = None
        """If ps make updates: by variable that they update, the gradient to push, `None` until there is one."""
        self.hyper: dict[str, dict[str, Any]] = {}
        """Their learning rates and other settings."""
        self.guarded: dict[str, Any] = {}
        """Of variables that a failed check has already kept as they were: `FAILED` at that time."""
        self.fed: Collection[Tensor] = set(self.values) if outer is None else outer.fed
        """The tensors whose values were given to the run."""
        self.instead: dict[Tensor, Any] = {}
        """Of tensors that are computed here for their derivatives alone, the values that they were given."""
        self._outer = outer
        self._inner = inner
        self.before: dict[Operation, dict[str, Any]] = {} if outer is None else outer.before
        """The state in which branches and loops that change it began, for those that compute them again."""
        self.added: dict[Tensor, tuple[Any, ...]] = dict(outer.added) if outer is not None else {}
        for tensor, value in (added or {}).items():
            self.added[tensor] = (*self.added.get(tensor, ()), value)

    def run(self, schedule: Schedule) -> None:
        """Runs the operations whose order matters, in that order."""
        for op in (*schedule.ordered, *schedule.shown):
            if not op.outputs or any(output not in self.values for output in op.outputs):
                self._compute_all(op)

    def value(self, tensor: Tensor) -> Any:
        """A tensor's value, computed if it has not been yet."""
        if tensor not in self.values:
            self._compute_all(tensor.op)
        return self.values[tensor] if tensor in self.values else self._outer_value(tensor)

    def child(
        self, values: Mapping[Tensor, Any], inner: Collection[Operation], added: Mapping[Tensor, Any] | None = None
    ) -> Frame:
        """Return a frame that computes some operations again from other values, and takes all others from here."""
        return Frame(dict(self.state), self.keys, values, self, inner, added)

    def checked(self) -> dict[str, Any]:
        """What its checks have found, as a part of its state that branches and loops carry."""
        return {FAILED: jnp.asarray(self.state[FAILED], np.int32)} if FAILED in self.state else {}

    def rows_if_unfailed(self, rows: Any, size: int, names: Iterable[str]) -> Any:
        """Return the numbers of rows to change in variables; numbers out of range if a check has failed."""
        failed = self.state.get(FAILED, 0)
        for name in names:
            self.guarded[name] = failed
        return rows if isinstance(failed, int) else jnp.where(failed == 0, rows, size)

    def check(self, op: Operation, holds: Any, message: str) -> None:
        """Note what an operation demands; the run fails if it does not hold."""
        if FAILED in self.state:
            demands = op.attributes.setdefault("demands", [])
            if message not in demands:
                demands.append(message)
            code = np.int32(op.number + 1 + demands.index(message) * MOST_OPERATIONS)
            before = jnp.asarray(self.state[FAILED], np.int32)
            self.state[FAILED] = jnp.where((before == 0) & ~holds, code, before)

    def _outer_value(self, tensor: Tensor) -> Any:
        if self._outer is None:
            raise KeyError(tensor.name)
        return self._outer.value(tensor)

    def _is_mine(self, op: Operation) -> bool:
        return self._inner is None or op in self._inner

    def _compute_all(self, op: Operation) -> None:
        """Computes an operation and whatever it needs, without recursion: graphs are thousands of operations deep."""
        stack = [op]
        while stack:
            one = stack[-1]
            if not self._is_mine(one):
                stack.pop()
                for output in one.outputs:
                    if output.dtype != string:  # text stays in Python
                        self.values.setdefault(output, self._outer_value(output))
                continue
            # An early one, a gradient, computes what it needs by itself: that is the forward pass.
            missing = [] if one.early else [t.op for t in one.inputs if t not in self.values]
            if missing:
                stack += missing
                continue
            stack.pop()
            if not one.outputs or any(output not in self.values for output in one.outputs):
                self._compute(one)

    def _results(self, op: Operation, arguments: Sequence[Any]) -> Sequence[Any]:
        if not op.stateful:
            return op.compute(*arguments)  # type: ignore[no-any-return]
        if "regions" not in op.attributes or not op.writes:
            return op.compute(self, *arguments)  # type: ignore[no-any-return]
        now, self.state = self.state, dict(self.before.setdefault(op, dict(self.state)))
        results: Sequence[Any] = op.compute(self, *arguments)
        now.update({variable.op_name: self.state[variable.op_name] for variable in op.writes})
        self.state = now
        return results

    def _compute(self, op: Operation) -> None:
        try:
            with np.errstate(all="ignore"), noting(lambda holds, message: self.check(op, holds, message)):
                if op.early:
                    results = op.compute(self)
                else:
                    arguments = [self.values[tensor] for tensor in op.inputs]
                    results = self._results(op, arguments)
        except (TypeError, ValueError) as exc:  # of shapes that were not known while recording
            if isinstance(exc, NEEDS_VALUE):
                raise Undetermined(op, [t for t in op.inputs if is_computed(self.values.get(t))], str(exc)) from exc
            shapes = ", ".join(str(np.shape(self.values[tensor])) for tensor in op.inputs if tensor in self.values)
            text = str(exc).splitlines()[0] if str(exc) else type(exc).__name__
            raise InvalidArgumentError(None, op, f"{op.type} of inputs of the shapes {shapes}: {text}") from exc
        for output, result in zip(op.outputs, results, strict=True):
            if output not in self.values:
                declared = _as_declared(result, output)
                if output in self.instead:
                    declared = with_value(declared, self.instead[output])
                self.values[output] = sum(self.added[output], declared) if output in self.added else declared


def _as_declared(value: Any, tensor: Tensor) -> Any:
    dtype = tensor.dtype.numpy
    if dtype.kind == "O":
        return value
    if getattr(value, "dtype", None) == dtype:
        return value
    if isinstance(value, np.ndarray | np.generic | int | float | bool):
        return np.asarray(value, dtype)
    return jnp.asarray(value, dtype)


class Computation:
    """Some fetches as a pure function of the variables, what is fed, and a random key.

    Attributes:
      reads, writes: the variables that it looks at and changes, by name; what is read includes what is changed
        in place.
    """

    def __init__(
        self,
        fetches: Sequence[Tensor | Operation],
        fed: Sequence[Tensor],
        *,
        late: Sequence[str] = (),
        late_variables: Mapping[str, Any] | None = None,
        done: Collection[Operation] = (),
        known: Mapping[Tensor, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """`late`: variables whose values are wanted as they are in the end. `done`: see `Schedule`.

        `known`: values that it is compiled for.
        """
        self.targets = tuple(fetches)
        self.fetches = [one for one in fetches if isinstance(one, Tensor)]
        self.fed = tuple(fed)
        self.late = tuple(late)
        self.late_variables = dict(late_variables or {})
        self.known = dict(known or {})
        self.schedule = Schedule(fetches, [*fed, *self.known], done=done)
        self.reads = dict(self.schedule.reads) | {
            name: variable for name, variable in self.late_variables.items() if name not in self.schedule.writes
        }
        self.writes = self.schedule.writes

    def __call__(
        self, state: Mapping[str, Any], feeds: Sequence[Any], keys: Keys | None
    ) -> tuple[list[Any], list[Any], dict[str, Any], Any]:
        """(values of the fetched tensors, of the late variables, of the changed variables, what the checks found).

        If a check fails, the changed variables have the values that they had.
        """
        frame = Frame({**state, FAILED: 0}, keys, self.given(feeds))
        frame.run(self.schedule)
        values = [frame.value(tensor) for tensor in self.fetches]
        changed = {name: frame.state[name] for name in self.writes if name in frame.state}
        failed = frame.state[FAILED]
        if isinstance(failed, int):
            return values, [frame.state[name] for name in self.late], changed, None
        for name in changed.keys() & state.keys():
            if frame.guarded.get(name) is not failed:
                changed[name] = jnp.where(failed == 0, changed[name], state[name])
        return values, [frame.state[name] for name in self.late], changed, failed

    def without(self, done: Collection[Operation]) -> Computation:
        """The same, but for operations that need not run."""
        late, variables = self.late, self.late_variables
        return Computation(self.targets, self.fed, late=late, late_variables=variables, done=done, known=self.known)

    def given(self, feeds: Sequence[Any]) -> dict[Tensor, Any]:
        """The values of tensors that a run begins with."""
        return {**dict(zip(self.fed, feeds, strict=True)), **self.known}

    def raise_failed(self, failed: Any) -> None:
        """Raises the error of a check that failed, if one did.

        Raises:
          InvalidArgumentError: of that operation.
        """
        if failed is not None and (error := error_of(failed, self.schedule.needed[0].graph)) is not None:
            raise error


def error_of(failed: Any, graph: Graph) -> InvalidArgumentError | None:
    """The error of what a frame's checks have found; `None` if nothing has failed."""
    demand, place = divmod(int(failed), MOST_OPERATIONS)
    if not place:
        return None
    op = graph.operations[place - 1]
    return InvalidArgumentError(None, op, op.attributes["demands"][demand])


def _passes_on(op: Operation) -> bool:
    """Whether a derivative goes through an operation: not through an assignment."""
    if op.writes and "regions" not in op.attributes:
        return False
    return not op.attributes.get("flat") and any(output.dtype.is_differentiable for output in op.outputs)


def depends_on(roots: Collection[Tensor], targets: Sequence[Tensor], stops: Collection[Tensor]) -> set[Operation]:
    """The operations through which the derivative of some targets by some roots goes, up to the stops.

    Those between two roots are among them.
    """
    roots, stops = set(roots), set(stops)
    state: dict[Operation, bool | None] = {}
    stack = [target.op for target in targets if target not in stops]
    while stack:
        op = stack[-1]
        if state.get(op) is not None:
            stack.pop()
            continue
        missing = [t.op for t in op.inputs if t not in stops and t.op not in state]
        if op not in state and missing:
            state[op] = None
            stack += missing
            continue
        state[op] = _passes_on(op) and any(t in roots or (t not in stops and state.get(t.op)) for t in op.inputs)
        stack.pop()
    through: set[Operation] = set()
    waiting = [target.op for target in targets if target not in stops]
    while waiting:
        op = waiting.pop()
        if state.get(op) and op not in through:
            through.add(op)
            waiting += [tensor.op for tensor in op.inputs if tensor not in stops]
    return through
