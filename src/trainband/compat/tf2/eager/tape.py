"""GradientTape: what is computed of the tensors that it watches is kept, so that derivatives can be taken of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainband.compat.ops.arrays import conjugate
from trainband.compat.ops.checks import noting
from trainband.compat.tf2.eager.execute import compute, convert
from trainband.compat.tf2.eager.recording import OPEN
from trainband.compat.tf2.eager.structure import flatten, pack
from trainband.compat.tf2.eager.tensor import Tensor


class UnconnectedGradients(enum.Enum):
    """What stands for the derivative by something that the target does not depend on."""

    NONE = "none"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A computation of watched tensors."""

    kind: int
    call: Callable[..., Sequence[Any]]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


class GradientTape:
    """Records what is done inside `with`.

    Args:
      persistent: whether derivatives can be taken more than once.
      watch_accessed_variables: whether trainable variables that are read are watched.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._watches_variables = watch_accessed_variables
        self._entries: list[_Entry] = []
        self._watched: dict[int, Tensor] = {}
        self._variables: dict[int, tuple[Any, list[Tensor]]] = {}
        self._used = False

    def __enter__(self) -> GradientTape:
        if self in OPEN.tapes:
            raise ValueError("Tape is still recording, This can happen if you try to re-enter an already-active tape.")
        OPEN.tapes.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        OPEN.tapes.remove(self)

    def watch(self, tensor: Any) -> None:
        """Watches a tensor, a variable, or a structure of them."""
        for one in flatten(tensor):
            if hasattr(one, "read_for"):
                self._variables.setdefault(id(one), (one, []))
                self.saw(one, one.read_for(self))
            elif isinstance(one, Tensor):
                if not one.dtype.is_differentiable:
                    continue
                self._watched[id(one)] = one
            else:
                raise ValueError(
                    f"Passed in object {one!r} of type {type(one).__name__}, not tf.Tensor or tf.Variable."
                )

    def saw(self, variable: Any, tensor: Tensor) -> None:
        """A variable was read."""
        if not (self._watches_variables and variable.trainable) and id(variable) not in self._variables:
            return
        _, seen = self._variables.setdefault(id(variable), (variable, []))
        if not any(one is tensor for one in seen):
            seen.append(tensor)
        self._watched[id(tensor)] = tensor

    def watched_variables(self) -> tuple[Any, ...]:
        """The variables that have been read, in order."""
        return tuple(variable for variable, _ in self._variables.values())

    def keep(
        self, kind: int, call: Callable[..., Sequence[Any]], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Keeps a computation, if it is of something that is watched."""
        if any(id(one) in self._watched for one in inputs):
            self._entries.append(_Entry(kind, call, inputs, outputs))
            for one in outputs:
                if one.dtype.is_differentiable:
                    self._watched[id(one)] = one

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Records nothing inside."""
        at = OPEN.tapes.index(self)
        del OPEN.tapes[at]
        try:
            yield
        finally:
            OPEN.tapes.insert(at, self)

    def reset(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._watched.clear()
        self._variables.clear()

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: Any = "none"
    ) -> Any:
        """The derivatives of a target, or of the sum of several, by the sources; `None` for one it does not depend on.

        Raises:
          RuntimeError: the tape is not persistent, and has been used.
        """
        targets = [one for one in map(convert, flatten(target)) if one is not None]
        given = (
            None if output_gradients is None else [None if g is None else convert(g) for g in flatten(output_gradients)]
        )
        return self._derived(_pull, targets, sources, given, unconnected_gradients)

    def jacobian(self, target: Any, sources: Any, unconnected_gradients: Any = "none", **_: Any) -> Any:
        """The derivative of each element of the target by each element of the sources."""
        return self._derived(_jacobian, [convert(target)], sources, None, unconnected_gradients)

    def _derived(self, derive: Any, targets: Sequence[Any], sources: Any, given: Any, unconnected: Any) -> Any:
        if self._used and not self._persistent:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)"
            )
        self._used = True
        flat = flatten(sources)
        # A variable may have been read several times: then the derivatives by all that was read are added.
        places = [self._variables[id(one)][1] if id(one) in self._variables else [one] for one in flat]
        wanted = {id(tensor): tensor for several in places for tensor in several if isinstance(tensor, Tensor)}
        entries, reached = self._between(wanted, targets)
        used = [tensor for key, tensor in wanted.items() if key in reached]
        targets_used = [(t, None if given is None else given[i]) for i, t in enumerate(targets) if id(t) in reached]
        found: dict[int, Any] = {}
        if used and targets_used:
            results = derive(entries, used, targets_used)
            found = {id(tensor): result for tensor, result in zip(used, results, strict=True)}
        if not self._persistent and self not in OPEN.tapes:
            self.reset()
        answers = []
        for one, several in zip(flat, places, strict=True):
            parts = [found[id(tensor)] for tensor in several if id(tensor) in found]
            if parts:
                total = parts[0]
                for part in parts[1:]:
                    total = total + part
                answers.append(total)
            elif str(getattr(unconnected, "value", unconnected)) == "zero":
                tensor = convert(one)
                answers.append(convert(np.zeros(tensor.aval[0], tensor.aval[1])))
            else:
                answers.append(None)
        return pack(sources, answers)

    def _between(self, wanted: dict[int, Tensor], targets: Sequence[Tensor]) -> tuple[list[_Entry], set[int]]:
        """The computations on the ways from the sources to the targets, and the tensors on them."""
        forward: set[int] = set(wanted)
        for entry in self._entries:
            if any(id(one) in forward for one in entry.inputs):
                forward.update(id(one) for one in entry.outputs if id(one) in self._watched)
        needed = {id(one) for one in targets if id(one) in forward}
        found: list[_Entry] = []
        for entry in reversed(self._entries):
            if any(id(one) in needed for one in entry.outputs) and any(id(one) in forward for one in entry.inputs):
                found.append(entry)
                needed.update(id(one) for one in entry.inputs if id(one) in forward)
        return found[::-1], needed


class _Replay:
    """Recorded computations as one function: from the sources, and all else that they take, to the targets."""

    def __init__(self, entries: Sequence[_Entry], sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        places: dict[int, tuple[str, Any]] = {id(one): ("s", i) for i, one in enumerate(sources)}
        self.others: list[Tensor] = []
        self.calls = [entry.call for entry in entries]
        self.codes: list[list[tuple[str, Any]]] = []
        for number, entry in enumerate(entries):
            codes = []
            for one in entry.inputs:
                if id(one) not in places:
                    places[id(one)] = ("o", len(self.others))
                    self.others.append(one)
                codes.append(places[id(one)])
            self.codes.append(codes)
            for which, one in enumerate(entry.outputs):
                places.setdefault(id(one), ("r", (number, which)))
        self.targets = [places[id(one)] for one in targets]
        self.key = (
            tuple((entry.kind, tuple(codes)) for entry, codes in zip(entries, self.codes, strict=True)),
            len(sources),
            tuple(self.targets),
        )

    def __call__(self, sources: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        results: list[Sequence[Any]] = []
        values = {"s": sources, "o": others}

        def value(code: tuple[str, Any]) -> Any:
            where, at = code
            return results[at[0]][at[1]] if where == "r" else values[where][at]

        with noting(None):  # they have been checked when they were computed
            for call, codes in zip(self.calls, self.codes, strict=True):
                results.append(call(*map(value, codes)))
        return [value(code) for code in self.targets]


def _pull(entries: Sequence[_Entry], sources: Sequence[Tensor], targets: Sequence[tuple[Tensor, Any]]) -> list[Tensor]:

    replay = _Replay(entries, sources, [tensor for tensor, _ in targets])
    given = [one for _, one in targets if one is not None]
    has = tuple(one is not None for _, one in targets)
    count, others = len(sources), len(replay.others)

    def call(*arrays: Any) -> Sequence[Any]:
        rest = list(arrays[count + others :])
        values, pull = jax.vjp(lambda *s: replay(s, arrays[count : count + others]), *arrays[:count])
        cotangents = [rest.pop(0) if own else jnp.ones_like(value) for own, value in zip(has, values, strict=True)]
        return tuple(map(conjugate, pull([conjugate(one) for one in cotangents])))

    return compute(("gradient", replay.key, has), call, [*sources, *replay.others, *given])


def _jacobian(
    entries: Sequence[_Entry], sources: Sequence[Tensor], targets: Sequence[tuple[Tensor, Any]]
) -> list[Tensor]:

    replay = _Replay(entries, sources, [tensor for tensor, _ in targets])
    count = len(sources)

    def call(*arrays: Any) -> Sequence[Any]:
        found = jax.jacrev(lambda s: replay(s, arrays[count:])[0])(list(arrays[:count]))
        return tuple(found)

    return compute(("jacobian", replay.key), call, [*sources, *replay.others])
