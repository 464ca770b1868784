"""Attacks on a job, from whoever reaches a ps's port: `python -m tests.security.attacks HOST:PORT [NAME ...]`.

Point it at a job of your own and of no one else. Each attack says what it has tried and whether the ps let it. None
of them knows the job's secret. Those of `connections` and `bodies` take some of the ps's memory and descriptors while
they run, in bounded amounts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.security.attacks import bodies, calls, connections


@dataclass(frozen=True, slots=True)
class Attack:
    """One of them: `run` takes the address of a ps and returns what it achieved; empty, if nothing."""

    name: str
    what: str
    run: Callable[[str], str]


ATTACKS = (
    Attack("takeover", "evict worker:0, take its place, define a program of one's own", calls.takeover),
    Attack("orders", "shutdown, finish, begin, steer and leave in others' names", calls.orders),
    Attack("names", "join under names that are numbers of others, too large or full of escapes", calls.names),
    Attack("files", "have the ps write to and read from any directory", calls.files),
    Attack("forgery", "worker state and heartbeats in others' names", calls.forgery),
    Attack("crowd", "thousands of joins", calls.crowd),
    Attack("garbage", "bytes that are no message, for every action", calls.garbage),
    Attack("replay", "a greeting, a proof and a sealed call of somebody else's, again", calls.replay),
    Attack("reading", "list and read the variables", bodies.reading),
    Attack("assignment", "assign a variable with a body without end", bodies.assignment),
    Attack("bomb", "33 kB that unpack to gigabytes", bodies.bomb),
    Attack("squeezed call", "a call that gRPC unpacks to gigabytes", bodies.squeezed_call),
    Attack("large call", "a call with a body of gigabytes", bodies.large_call),
    Attack("silence", "connections that say nothing", connections.silence),
    Attack("streams", "streams that say nothing", connections.streams),
    Attack("greetings", "thousands of greetings and wrong proofs, which keep others out", connections.greetings),
    Attack("port reuse", "read the variables from the port of somebody who was let in", connections.port_reuse),
    Attack("noise", "bytes that are no HTTP/2", connections.noise),
)
