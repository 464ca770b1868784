"""Attacks on a TensorFlow 2 job by who holds the credentials of one of its workers.

With only a secret they let a task call itself what it wants; a worker's certificate names that worker. Each attack
returns what it achieved; empty, if nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainband.cluster.identity import Identity
from trainband.compat.tf1.graphs.errors import OpError
from trainband.compat.tf2.coordinator import records as r
from trainband.compat.tf2.coordinator.link import Link
from trainband.compat.tf2.coordinator.programs import exported
from trainband.errors import PeerError
from trainband.wire.transport import Timeouts, Transport

QUICK = Timeouts(connect_s=20.0, call_s=20.0, stall_s=20.0)
VECTOR = r.Aval((3,), "float32")
WORKER = Identity("worker:1", "attacker")
CHIEF = Identity("chief:0", "attacker")


@dataclass(frozen=True, slots=True)
class Target:
    """A job: the addresses of its ps and of its worker, and the session that its coordinator has told all tasks.

    `speaking_as` gives a transport with the job's secret.
    """

    ps: str
    worker: str
    session: str
    speaking_as: Callable[[Identity], Transport]


@dataclass(frozen=True, slots=True)
class Attack:
    """One of them."""

    name: str
    what: str
    run: Callable[[Target], str]


def opened(target: Target, who: Identity, address: str, hello: r.Hello) -> Link:
    """A stream to a server of the job."""
    answers = r.FromPs if address == target.ps else r.FromWorker
    link = Link("it", address, answers, target.speaking_as(who), QUICK)
    try:
        link.open(hello)
    except PeerError:
        link.close()
        raise
    return link


def closure_of(data: bytes, number: int = 1) -> tuple[r.DefineClosure, list[Any]]:
    """The definition of a closure of one vector that gives one, and its body."""
    definition = r.DefineClosure(number, "cpu", (), (), (VECTOR,), 1, (), ())
    return definition, [np.frombuffer(data, np.uint8)]


def _tried(target: Target, who: Identity, address: str, hello: r.Hello, *requests: tuple[Any, list[Any]]) -> str:
    """Which of these requests the server has answered."""
    done = []
    with suppress(PeerError, OpError):
        link = opened(target, who, address, hello)
        try:
            for record, body in requests:
                if isinstance(record, r.DefineClosure):  # which is not answered
                    link.send(record, body)
                    continue
                link.ask(record, body, QUICK.stall_s)
                done.append(type(record).__name__)
        finally:
            link.close()
    return ", ".join(done)


def _run(target: Target, who: Identity, hello: r.Hello) -> str:
    """Has the worker attach to its ps and run a closure."""
    define = closure_of(exported(lambda x: [x + 1], [VECTOR], "cpu"))
    run = (r.Run(1, 0), [np.ones(3, np.float32)])
    return _tried(target, who, target.worker, hello, (r.Attach((target.ps,)), []), define, run)


def _use(target: Target, who: Identity, hello: r.Hello) -> str:
    """Puts a variable on the ps, reads it, and defines a program there."""
    program = np.frombuffer(exported(lambda x: [x * 2], [VECTOR], "cpu"), np.uint8)
    put = (r.Put((99,), (VECTOR,)), [np.ones(3, np.float32)])
    return _tried(target, who, target.ps, hello, put, (r.Commit(read=(99,)), []), (r.Define(9), [program]))


def closure(target: Target) -> str:
    """As a worker that does not say it coordinates, in its own session and in the coordinator's."""
    return "".join(_run(target, WORKER, r.Hello(session)) for session in ("attacker", target.session))


def coordinate(target: Target) -> str:
    """As a worker that says it coordinates."""
    hello = r.Hello("attacker", coordinates=True)
    return _run(target, WORKER, hello) + _use(target, WORKER, hello)


def take_over(target: Target) -> str:
    """As another chief, while the coordinator is there."""
    hello = r.Hello("attacker", coordinates=True)
    return _run(target, CHIEF, hello) + _use(target, CHIEF, hello)


def steal(target: Target) -> str:
    """As another chief, in the session of the coordinator that is there, and as the process that this is."""
    hello = r.Hello(target.session, coordinates=True)
    chiefs = (CHIEF, Identity("chief:0", target.session))
    return "".join(_run(target, chief, hello) + _use(target, chief, hello) for chief in chiefs)


def variables(target: Target) -> str:
    """As a worker: read in a session that is not the coordinator's, put and define in the one that is."""
    read = _tried(target, WORKER, target.ps, r.Hello("attacker"), (r.Commit(read=(7,)), []))
    return read + _use(target, WORKER, r.Hello(target.session))


ATTACKS = (
    Attack("closure", "have another worker run a program", closure),
    Attack("coordinate", "coordinate as a worker", coordinate),
    Attack("take over", "coordinate while another coordinator does", take_over),
    Attack("steal", "coordinate in the session of the coordinator", steal),
    Attack("variables", "read and define on the ps", variables),
)
