"""Store: holds a session's variables and runs computations on them; LocalStore does so in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from trainband.compat.ops import interrupt
from trainband.compat.tf1.graphs.config import ConfigProto
from trainband.compat.tf1.graphs.device import Devices
from trainband.compat.tf1.graphs.effects import raise_noted
from trainband.compat.tf1.graphs.errors import FailedPreconditionError, OpError
from trainband.compat.tf1.graphs.graph import Stored
from trainband.compat.tf1.graphs.keys import Keys, fresh_base
from trainband.compat.tf1.graphs.lowering import Computation
from trainband.compat.tf1.graphs.variable import Variable
from trainband.runtime.overrides import override

MOST_COMPILED = 1000
"""The most computations that a store keeps; those of runs whose shapes depend on values may become many."""


@dataclass(slots=True)
class Turn:
    """What the parts of one run share: the number that its random keys are derived from."""

    number: int | None = None


class Store(Protocol):
    """Holds variables, and runs computations on them."""

    devices: Devices
    """The devices for operations."""

    def run(
        self, computation: Computation, feeds: Sequence[Any], turn: Turn | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """The values of its fetches, and of its late variables. `turn`: of the run that this is a part of.

        Raises:
          FailedPreconditionError: a variable has no value.
        """
        ...

    def missing(self, variables: Sequence[Variable]) -> list[str]:
        """The names of those that have no value."""
        ...

    def values(self, variables: Sequence[Stored]) -> dict[str, Any]:
        """The values of variables, by name, as NumPy arrays."""
        ...

    def assign(self, values: dict[str, Any]) -> None:
        """Gives variables values."""
        ...

    def failing(self, exc: BaseException | None) -> None:
        """Records the exception with which the script leaves the session, if any."""
        ...

    def close(self) -> None:
        """Releases everything. Idempotent."""
        ...


@dataclass(frozen=True)
class LocalVariables:
    """The variables of one session, or of all sessions of a server, and the lock held while they are replaced."""

    values: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class LocalStore(Store):
    """Variables in this process, as JAX's arrays. Those that are given are a server's, and outlive the session."""

    def __init__(self, config: ConfigProto, variables: LocalVariables | None = None) -> None:
        own = variables or LocalVariables()
        self._state, self._lock = own.values, own.lock
        self._is_alone = variables is None
        self._compiled: dict[Computation, Any] = {}
        self._base = fresh_base()
        self._counter = 0
        self.devices = Devices({}, here(config), config.allow_soft_placement)

    @override
    def run(
        self, computation: Computation, feeds: Sequence[Any], turn: Turn | None = None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        compiled = self._compiled.get(computation)
        if compiled is None:
            if len(self._compiled) >= MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            compiled = self._compiled[computation] = _compiled(computation)
        schedule = computation.schedule
        counter = None
        if schedule.is_random:
            turn = turn or Turn()
            with self._lock:
                if turn.number is None:
                    self._counter += 1
                    turn.number = self._counter
            counter = np.uint32(turn.number)
        # Another run would find the variables gone whose memory this one reuses. One with callbacks, which may wait
        # for other runs, reuses none.
        with nullcontext() if schedule.has_effects else self._lock, jax.enable_x64(True):
            with interrupt.watched() if schedule.has_loops else nullcontext():
                values, late, changed, failed = self._start(compiled, computation, feeds, counter)
                if schedule.has_loops:
                    jax.block_until_ready((values, changed))
                if schedule.has_effects:
                    raise_noted()
                try:
                    computation.raise_failed(failed)
                except OpError:  # what is read is as it was; its old arrays are donated
                    self._state.update({name: changed[name] for name in changed if name in computation.reads})
                    raise
                self._state.update(changed)
            return [np.asarray(value) for value in values], [np.asarray(value) for value in late]

    def _start(self, compiled: Any, computation: Computation, feeds: Sequence[Any], counter: Any) -> Any:
        state, reads, writes = self._state, computation.reads, computation.writes
        for tries_left in range(3, -1, -1):
            if not reads.keys() <= state.keys():
                raise uninitialised(computation, state)
            kept = {name: state[name] for name in reads if name not in writes}
            changing = {name: state[name] for name in writes if name in reads}
            try:
                return compiled(kept, changing, feeds, counter, self._base)
            except (RuntimeError, ValueError) as exc:
                if "deleted" not in str(exc) or not tries_left:
                    raise
        raise AssertionError

    @override
    def missing(self, variables: Sequence[Variable]) -> list[str]:
        return [variable.op_name for variable in variables if variable.op_name not in self._state]

    @override
    def values(self, variables: Sequence[Stored]) -> dict[str, Any]:
        for variable in variables:
            if variable.op_name not in self._state:
                raise FailedPreconditionError(
                    None, variable.op, f"Attempting to use uninitialized value {variable.op_name}"
                )
        return {variable.op_name: np.array(self._state[variable.op_name]) for variable in variables}

    @override
    def assign(self, values: dict[str, Any]) -> None:
        with jax.enable_x64(True):
            self._state.update({name: jax.numpy.array(value) for name, value in values.items()})

    def state_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of those variables that have one, without copying."""
        return {name: self._state[name] for name in names if name in self._state}

    def put(self, values: Mapping[str, Any]) -> None:
        """Replaces values without copying."""
        self._state.update(values)

    @override
    def failing(self, exc: BaseException | None) -> None:
        pass  # there is nobody to tell

    @override
    def close(self) -> None:
        if self._is_alone:
            self._state.clear()
        self._compiled.clear()


def _compiled(computation: Computation) -> Any:
    def run(kept: Any, changing: Any, feeds: Any, counter: Any, base: Any) -> Any:
        keys = None if counter is None else Keys(jax.random.wrap_key_data(base), counter)
        return computation({**kept, **changing}, feeds, keys)

    # New values reuse the memory of old ones, unless a callback may fail, after which the old ones are needed.
    return jax.jit(run, donate_argnums=() if computation.schedule.has_effects else (1,))


def here(config: ConfigProto) -> dict[str, int]:
    """Return how many devices of each type this process has, or is configured to have."""
    counts = {"CPU": config.device_count.get("CPU", 1)}
    others = [device for device in jax.local_devices() if device.platform != "cpu"]
    if others and config.device_count.get("GPU") != 0:
        counts["GPU"] = len(others)
    return counts


def uninitialised(computation: Computation, state: Any) -> FailedPreconditionError:
    """Make the error for a computation that reads a variable that has no value."""
    missing = next(variable for name, variable in computation.reads.items() if name not in state)
    readers = [op for op in computation.schedule.needed if missing in op.reads]
    return FailedPreconditionError(
        None,
        readers[-1] if readers else missing.op,
        f"Attempting to use uninitialized value {missing.op_name}; the variable is defined at {missing.op.where}. Run "
        "tf.global_variables_initializer() first, or tf.local_variables_initializer() for local variables",
    )
