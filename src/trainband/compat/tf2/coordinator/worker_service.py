"""The service of a worker: it runs closures on variables of the parameter servers, for the coordinator."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.arrays import Reader, sendable
from trainband.compat.tf2.coordinator.job import Job
from trainband.compat.tf2.coordinator.link import Link
from trainband.compat.tf2.coordinator.programs import CLOSURE_LIMITS, Program, platform_here, program_of
from trainband.compat.tf2.coordinator.serving import PsLost, Requests
from trainband.errors import PeerError, ProtocolError, Refused
from trainband.ps.program.check.checker import SHARED, ProgramChecker
from trainband.runtime.overrides import override
from trainband.wire.frame import Bytes
from trainband.wire.transport import Timeouts, Transport

_OLD_S = 0.1
"""How long what was read with the last change counts as new."""


@dataclass(slots=True)
class _Closure:
    """A closure as this worker runs it: of each ps what it reads, and where that comes among the program's inputs."""

    definition: r.DefineClosure
    program: Program
    inputs: Reader
    reads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    readers: dict[int, Reader] = field(default_factory=dict)
    places: dict[int, tuple[int, ...]] = field(default_factory=dict)


class _Session:
    """What one coordinator has this worker do."""

    def __init__(self, hello: r.Hello) -> None:
        self.hello = hello
        self.closures: dict[int, _Closure] = {}
        self.refused: dict[int, str] = {}
        """Why closures cannot be run here."""
        self.links: list[Link] = []
        self.known: tuple[dict[int, tuple[int, ...]], int, float, dict[int, Sequence[Bytes]]] | None = None
        """The last read: the variables, its epoch and time, and the bodies with the values."""

    def close(self) -> None:
        """Ends the streams to the ps."""
        for link in self.links:
            link.close()


class WorkerService(Requests):
    """One worker."""

    takes = r.ToWorker

    def __init__(
        self, name: str, job: Job, transport: Transport, timeouts: Timeouts, checker: ProgramChecker = SHARED
    ) -> None:
        super().__init__(name, job)
        self._checker = checker
        self._transport = transport
        self._timeouts = timeouts

    @override
    def begin(self, hello: r.Hello) -> _Session:
        return _Session(hello)

    @override
    def over(self, session: _Session) -> None:
        session.close()

    @override
    def answer(self, session: _Session, record: Any, body: Sequence[Bytes]) -> tuple[Any, Sequence[Any]] | None:
        if isinstance(record, r.Run):
            return self._run(session, record, body)
        if isinstance(record, r.Attach):
            self._attach(session, record)
            return r.Attached(platform_here()), ()
        assert isinstance(record, r.DefineClosure)
        try:
            if record.platform not in ("cpu", platform_here()):
                raise ProtocolError(f"{self.name} computes on {platform_here()}, and not on {record.platform[:20]!r}.")
            data, _ = self._checker.check_function(
                bytes(body[0]), "the coordinator", CLOSURE_LIMITS, platform=record.platform
            )
            session.closures[record.closure] = _prepared(record, program_of(data))
        except (ProtocolError, Refused) as exc:
            session.refused[record.closure] = str(exc)
        return None

    def _attach(self, session: _Session, attach: r.Attach) -> None:
        for number, address in enumerate(attach.addresses):
            link = Link(f"ps:{number}", address, r.FromPs, self._transport, self._timeouts)
            session.links.append(link)
            try:
                link.open(r.Hello(session.hello.session))
            except PeerError as exc:
                raise PsLost(number, f"{self.name} cannot reach {link}: {exc}") from exc

    def _run(self, session: _Session, run: r.Run, body: Sequence[Bytes]) -> tuple[Any, Sequence[Any]]:
        closure = session.closures.get(run.closure)
        if closure is None:
            raise ProtocolError(session.refused.get(run.closure, f"{self.name} has no closure {run.closure}."))
        given = closure.inputs(body)
        variables = self._read(session, closure, run.epoch)
        found = closure.program([*variables, *given])
        definition = closure.definition
        checks = definition.results + len(definition.messages)
        for holds, message in zip(found[definition.results : checks], definition.messages, strict=True):
            if not bool(holds):
                if message == r.GUARD:
                    return r.Failure(r.OTHERWISE, "it decides otherwise"), ()
                raise InvalidArgumentError(None, None, message)
        self._change(session, closure, found, run.epoch)
        return r.Done(), [np.asarray(one) for one in found[: definition.results]]

    def _read(self, session: _Session, closure: _Closure, epoch: int) -> list[Any]:
        if not closure.reads:
            return []
        known = session.known
        if (
            known is not None
            and known[0] == closure.reads
            and known[1] == epoch
            and time.monotonic() - known[2] < _OLD_S
        ):
            bodies = known[3]
        else:
            bodies = self._ask(session, {ps: (r.Commit(read=ids), ()) for ps, ids in closure.reads.items()})
        found: list[Any] = [None] * len(closure.definition.reads)
        for ps, body in bodies.items():
            for place, value in zip(closure.places[ps], closure.readers[ps](body), strict=True):
                found[place] = value
        return found

    def _change(self, session: _Session, closure: _Closure, arrays: Sequence[Any], epoch: int) -> None:
        """Makes the changes of a closure, and reads for the next run of it."""
        planned = closure.definition.changes
        session.known = None
        if not planned:
            return
        changes: dict[int, list[r.Change]] = {}
        given: dict[int, list[Any]] = {}
        for one in planned:
            changes.setdefault(one.ps, []).append(one.change)
            given.setdefault(one.ps, []).extend(sendable(arrays[place]) for place in one.arrays)
        commits = {
            ps: (r.Commit(tuple(several), closure.reads.get(ps, ())), given[ps]) for ps, several in changes.items()
        }
        bodies = self._ask(session, commits)
        if bodies.keys() >= closure.reads.keys():
            kept = {ps: bodies[ps] for ps in closure.reads}
            session.known = (closure.reads, epoch, time.monotonic(), kept)

    def _ask(
        self, session: _Session, commits: Mapping[int, tuple[r.Commit, Sequence[Any]]]
    ) -> dict[int, Sequence[Bytes]]:
        """Sends each ps its request before it waits for any answer."""
        bodies: dict[int, Sequence[Bytes]] = {}
        at = 0
        try:
            for at, (commit, given) in commits.items():
                session.links[at].send(commit, given)
            for at in commits:
                answer, frame = session.links[at].receive(self._timeouts.stall_s)
                if isinstance(answer, r.Failure):
                    raise ProtocolError(f"ps:{at} could not serve {self.name}: {answer.message}")
                bodies[at] = frame.body
        except ProtocolError:
            raise
        except PeerError as exc:
            raise PsLost(at, f"{self.name} has lost {session.links[at]}: {exc}") from exc
        return bodies


def _prepared(definition: r.DefineClosure, program: Program) -> _Closure:
    if program.takes != [*definition.avals, *definition.inputs]:
        raise ProtocolError("the program of a closure does not take what its definition says.")
    taken = [place for one in definition.changes for place in one.arrays]
    if max([definition.results + len(definition.messages) - 1, *taken]) >= len(program.gives):
        raise ProtocolError("the program of a closure gives less than its definition says.")
    found = _Closure(definition, program, Reader(definition.inputs, "the coordinator"))
    for ps in sorted({ps for ps, _ in definition.reads}):
        places = tuple(at for at, (other, _) in enumerate(definition.reads) if other == ps)
        found.places[ps] = places
        found.reads[ps] = tuple(definition.reads[at][1] for at in places)
        found.readers[ps] = Reader([definition.avals[at] for at in places], f"ps:{ps}")
    return found
