"""The service of a parameter server: it holds variables of any shape, and changes them by programs that it is given.

Updates take effect in the order in which they come, each as a whole: what one worker reads is never half of another's
update.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.arrays import Reader
from trainband.compat.tf2.coordinator.job import Job
from trainband.compat.tf2.coordinator.programs import Program, program_of
from trainband.compat.tf2.coordinator.serving import Requests
from trainband.errors import ProtocolError
from trainband.ps.program.check.checker import SHARED, ProgramChecker
from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.slow_updates import SlowUpdates
from trainband.runtime import SYSTEM
from trainband.runtime.overrides import override
from trainband.runtime.waiting import say_on_stderr
from trainband.wire.frame import Bytes

_COORDINATOR = "the coordinator"


@dataclass(slots=True)
class _Update:
    """A program that has been defined."""

    program: Program
    slow: SlowUpdates
    has_run: bool = False

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """What the program gives."""
        began = SYSTEM.clock()
        found = self.program(inputs)
        if self.has_run:  # the first run compiles
            self.slow.record(SYSTEM.clock() - began)
        self.has_run = True
        return found


@dataclass(slots=True)
class _Prepared:
    """A change that has been looked at once: what its arrays are, and the program."""

    reader: Reader
    update: _Update | None


class PsService(Requests):
    """The variables of one ps. One stream for the coordinator, and one for each worker."""

    takes = r.ToPs
    serves_workers = True

    def __init__(self, name: str, job: Job, checker: ProgramChecker = SHARED) -> None:
        super().__init__(name, job)
        self._checker = checker
        self._limits = ProgramLimits()
        self._lock = threading.Lock()
        self._session = ""
        self._values: dict[int, Any] = {}
        self._programs: dict[int, _Update] = {}
        self._prepared: dict[r.Change, _Prepared] = {}

    @override
    def begin(self, hello: r.Hello) -> r.Hello:
        with self._lock:
            if hello.coordinates and hello.session != self._session:
                self._session = hello.session
                self._values, self._programs, self._prepared = {}, {}, {}
            elif hello.session != self._session:
                raise ProtocolError(f"{self.name} serves another coordinator now.")
        return hello

    @override
    def answer(self, session: r.Hello, record: Any, body: Sequence[Bytes]) -> tuple[Any, Sequence[Any]] | None:
        if isinstance(record, r.Commit):
            return r.Values(), self._commit(session.session, record, body)
        if not session.coordinates:
            raise ProtocolError("only the coordinator may define variables and programs.")
        if isinstance(record, r.Put):
            values = [_owned(one) for one in Reader(record.avals, "the coordinator")(body)]
            with self._lock:
                self._check(session.session)
                self._values.update(zip(record.variables, values, strict=True))
            return r.Values(), ()
        assert isinstance(record, r.Define)
        with self._lock:
            nbytes = 2 * sum(one.nbytes for one in self._values.values())
        data, checked_s = self._checker.check_function(bytes(body[0]), _COORDINATOR, self._limits, nbytes=nbytes)
        update = _Update(program_of(data), SlowUpdates(_COORDINATOR, checked_s, say_on_stderr))
        with self._lock:
            self._check(session.session)
            self._programs[record.program] = update
        return r.Values(), ()

    def _commit(self, session: str, commit: r.Commit, body: Sequence[Bytes]) -> list[Any]:
        with self._lock:
            self._check(session)
            at = 0
            for change in commit.changes:
                self._change(change, body[at : at + change.given])
                at += change.given
            if at != len(body):
                raise ProtocolError(f"{self.name} was sent {len(body)} arrays for changes that take {at}.")
            values = [self._value(one) for one in commit.read]
        return [np.asarray(one) for one in values]

    def _change(self, change: r.Change, body: Sequence[Bytes]) -> None:
        prepared = self._prepared.get(change)
        if prepared is None:
            prepared = self._prepared[change] = self._prepare(change)
        given = prepared.reader(body)
        if change.kind == r.ASSIGN:
            self._values.update(zip(change.variables, map(_owned, given), strict=True))
        elif change.kind == r.ADD:
            for one, delta in zip(change.variables, given, strict=True):
                self._values[one] = _sum(self._values[one], delta)
        else:
            assert prepared.update is not None
            new = prepared.update([*(self._values[one] for one in change.variables), *given])
            self._values.update(zip(change.variables[: change.changed], new, strict=True))

    def _prepare(self, change: r.Change) -> _Prepared:
        """Looks at a change: that it fits the variables.

        Raises:
          ProtocolError: it does not.
        """
        held = [self._value(one) for one in change.variables]
        avals = [r.Aval(tuple(one.shape), np.dtype(one.dtype).name) for one in held]
        if change.kind != r.UPDATE:
            if change.given != len(avals):
                raise ProtocolError(f"{self.name} was sent {change.given} values for {len(avals)} variables.")
            return _Prepared(Reader(avals, "the job"), None)
        update = self._programs.get(change.program)
        if update is None:
            raise ProtocolError(f"{self.name} has no program {change.program}.")
        program = update.program
        if program.takes[: len(avals)] != avals or program.gives != avals[: change.changed]:
            raise ProtocolError(f"program {change.program} is not one of the variables that it is to update.")
        if len(program.takes) != len(avals) + change.given:
            raise ProtocolError(f"program {change.program} does not take {change.given} arrays.")
        return _Prepared(Reader(program.takes[len(avals) :], "the job"), update)

    def _value(self, variable: int) -> Any:
        try:
            return self._values[variable]
        except KeyError:
            raise ProtocolError(f"{self.name} has no variable {variable}.") from None

    def _check(self, session: str) -> None:
        if session != self._session:
            raise ProtocolError(f"{self.name} serves another coordinator now.")


def _owned(value: Any) -> Any:
    """A copy, as the body of a frame is overwritten by the next."""
    with jax.enable_x64(True):
        return jax.numpy.array(value, copy=True) if value.size > 1 else np.array(value)


def _sum(value: Any, delta: Any) -> Any:
    """A sum in the dtype of the variable. Small ones, such as what metrics count, need no program."""
    return np.add(np.asarray(value), delta, dtype=value.dtype)
