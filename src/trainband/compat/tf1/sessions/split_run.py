"""SplitRun: a run in parts, where shapes depend on values that have to be computed first.

A computation is compiled as a whole if it can be. If an operation turns out to need values, such as the sizes of a
reshape, these are computed on their own, and the rest is compiled for them. An operation whose results have as many
elements as its values say, such as `tf.where(x)`, is computed by NumPy, and the rest is compiled for the sizes that
came out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainband.compat.ops.checks import noting
from trainband.compat.ops.dtypes import string
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.lowering import Computation, Undetermined, has
from trainband.compat.tf1.sessions.numpy_part import NumpyPart, failing
from trainband.compat.tf1.sessions.store import Turn

Found = tuple[Sequence[Any], Sequence[Any]]
"""The values of fetches, and of late variables."""
Run = Callable[[Computation, Sequence[Any], Turn], Found]

MOST_KEPT = 256
"""The most computations that are kept; each is compiled for other values."""


@dataclass(slots=True)
class _Progress:
    """What is known in the course of a run.

    Attributes:
      fed: values that the rest is fed with.
      known: values that the rest is compiled for.
      seen: values that were needed on the way; a derivative goes through the operations that compute them.
      done: operations with effects that have run.
    """

    fed: dict[Tensor, Any]
    known: dict[Tensor, np.ndarray[Any, Any]] = field(default_factory=dict)
    seen: dict[Tensor, Any] = field(default_factory=dict)
    done: dict[Operation, None] = field(default_factory=dict)
    turn: Turn = field(default_factory=Turn)

    def values(self) -> dict[Tensor, Any]:
        """All values."""
        return {**self.seen, **self.fed, **self.known}

    def see(self, values: Mapping[Tensor, Any]) -> None:
        """Adds values. Only floating-point numbers are computed again."""
        self.seen |= values
        self.fed |= {one: value for one, value in values.items() if not one.dtype.is_floating and one.dtype != string}


class SplitRun:
    """Runs a computation, if need be in parts; which parts is found in its first run."""

    def __init__(self, computation: Computation) -> None:
        self._whole = computation
        self._part = _in_numpy(computation)
        self._needs: list[Undetermined] = []
        self._is_planned = False
        self._kept: dict[Any, Computation] = {}

    @property
    def fetches(self) -> Sequence[Tensor]:
        """The tensors that it gives."""
        return self._whole.fetches

    def run(self, values: Mapping[Tensor, Any], run: Run) -> Found:
        """The values of the fetches, and of late variables.

        Args:
          values: of all that is fed.

        Raises:
          InvalidArgumentError: a value that is needed cannot be computed beforehand.
        """
        if self._part is not None:
            found = dict(values)
            self._part.run(found)
            return [found[one] for one in self._whole.fetches], []
        progress = _Progress({one: value for one, value in values.items() if one.dtype != string})
        for need in self._needs:
            self._find(need, progress, run)
        try:
            whole = self._whole if not self._needs else self._rest(self._whole, progress)
            return run(whole, [progress.fed[one] for one in whole.fed], progress.turn)
        except Undetermined as need:
            self._note(need, progress, run)
        return self._compute(self._whole, progress, run)

    def _note(self, need: Undetermined, progress: _Progress, run: Run) -> None:
        """Finds what has turned out to be needed, and remembers it for other runs.

        Raises:
          Undetermined: it is known already, and that was not enough.
        """
        before = len(self._needs)
        if not self._is_planned:
            self._is_planned = True
            for one in self._likely():
                self._add(one, progress, run)
        if len(self._needs) == before and not self._add(need, progress, run):
            raise need

    def _add(self, need: Undetermined, progress: _Progress, run: Run) -> bool:
        """Whether an operation needs what was not known."""
        if _is_found(need, progress):
            return False
        self._find(need, progress, run)
        self._needs.append(need)
        return True

    def _likely(self) -> list[Undetermined]:
        """What the whole is likely to need: finding each by another attempt takes longer."""
        operations = sorted(self._whole.schedule.needed, key=lambda op: op.number)
        wanted = [
            op for op in operations if op.region is None and ("unsized" in op.attributes or op.attributes.get("sized"))
        ]
        return [Undetermined(op, op.attributes.get("sized") or (), "it needs values") for op in wanted]

    def _compute(self, computation: Computation, progress: _Progress, run: Run) -> Found:
        while True:
            rest = self._rest(computation, progress)
            try:
                found = run(rest, [progress.fed[one] for one in rest.fed], progress.turn)
            except Undetermined as need:
                self._note(need, progress, run)
            else:
                return found

    def _find(self, need: Undetermined, progress: _Progress, run: Run) -> None:
        """Finds the values that an operation needs."""
        op = need.located
        if _is_found(need, progress):
            return
        is_unsized = _is_unsized(op)
        wanted = op.inputs if is_unsized else need.tensors
        values = progress.values()
        if missing := [one for one in dict.fromkeys(wanted) if one not in values]:
            self._see(missing, progress, run)
            values = progress.values()
        if not is_unsized:
            progress.known |= {one: np.asarray(values[one]) for one in wanted}
            return
        compute = op.attributes.get("python", op.compute)
        with noting(failing(op)):
            results = compute(*(np.asarray(values[one]) for one in wanted))
        progress.done[op] = None
        progress.fed |= {
            one: np.asarray(result, one.dtype.numpy) for one, result in zip(op.outputs, results, strict=True)
        }

    def _see(self, tensors: Sequence[Tensor], progress: _Progress, run: Run) -> None:
        """Computes some values."""
        before = progress.values()
        part = NumpyPart.of(tensors, before.keys())
        if part is not None:
            part.run(before)
            progress.see({one: before[one] for one in tensors})
            return
        plain = Computation(tensors, [])
        effects = [op for op in plain.schedule.needed if (op.writes or has(op, "effect")) and op not in progress.done]
        results = [one for op in effects for one in op.outputs if one.dtype != string and one not in progress.fed]
        computation = Computation(list(dict.fromkeys([*tensors, *results, *effects])), [])
        found, _ = self._compute(computation, progress, run)
        progress.done |= dict.fromkeys(effects)
        values = dict(zip(computation.fetches, found, strict=True))
        progress.see(values)
        progress.fed |= {one: values[one] for one in results}

    def _rest(self, computation: Computation, progress: _Progress) -> Computation:
        """What is left of a computation."""
        fed = tuple(one for one in progress.fed if one not in progress.known)
        plan = (computation, fed, frozenset(progress.known), frozenset(progress.done))
        base = self._kept.get(plan)
        if base is None:
            base = self._kept[plan] = self._made(computation, fed, progress.known, progress)
        known = {one: progress.known[one] for one in base.known}
        key = (plan, tuple((value.shape, value.tobytes()) for value in known.values()))
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._made(computation, base.fed, known, progress)
        return self._kept[key]

    def _made(
        self, computation: Computation, fed: Sequence[Tensor], known: Mapping[Tensor, Any], progress: _Progress
    ) -> Computation:
        def make(fed: Sequence[Tensor], known: Mapping[Tensor, Any]) -> Computation:
            return Computation(
                [one for one in computation.targets if one not in progress.done],
                fed,
                late=computation.late,
                late_variables=computation.late_variables,
                done=progress.done,
                known=known,
            )

        used = inputs_of(make(fed, known).schedule.needed).union(computation.targets)
        return make([one for one in fed if one in used], {one: value for one, value in known.items() if one in used})


def _is_unsized(op: Operation) -> bool:
    """Whether NumPy is to compute an operation."""
    return "unsized" in op.attributes and op.region is None


def _is_found(need: Undetermined, progress: _Progress) -> bool:
    """Whether everything that an operation needs is known."""
    if _is_unsized(need.located):
        return all(one in progress.fed for one in need.located.outputs)
    return progress.known.keys() >= {*need.tensors}


def _in_numpy(computation: Computation) -> NumpyPart | None:
    """A computation that NumPy can do: compiling it would take longer."""
    if computation.late or len(computation.fetches) != len(computation.targets):
        return None
    return NumpyPart.of(computation.fetches, computation.fed)


def inputs_of(operations: Iterable[Operation]) -> set[Tensor]:
    """What some operations, and those inside them, take as inputs."""
    found: set[Tensor] = set()
    waiting = list(operations)
    while waiting:
        op = waiting.pop()
        found.update(op.inputs)
        waiting += [inner for region in op.attributes.get("regions", ()) for inner in region.operations]
    return found
