"""Control calls of somebody who is in no job."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow.flight as flight

from trainband.errors import PeerError
from trainband.version import VERSION
from trainband.wire.flight import FlightConnection
from trainband.wire.messages.codec import encode
from trainband.wire.security import handshake
from trainband.wire.security.handshake import HelloRequest, Prove
from trainband.wire.transport import Timeouts

QUICK = Timeouts(connect_s=3.0, call_s=3.0)
EVERY_ACTION = (
    *("join", "define", "invite", "begin", "finish", "steer", "save", "save_state", "committed", "worker_state"),
    *("my_worker_state", "restore", "restore_state", "adopt", "heartbeat", "pause", "lease", "leave", "state"),
    *("vacancy", "shutdown", "vote", "status", "trainband.ucx", "trainband.info"),
)


def call(connection: FlightConnection, action: str, record: Mapping[str, Any] | bytes = b"") -> bool:
    """Whether the ps has answered."""
    body = record if isinstance(record, bytes) else msgspec.msgpack.encode(record)
    try:
        connection.call(action, body, timeout_s=3.0)
    except PeerError:
        return False
    return True


def _tried(address: str, tries: Iterable[tuple[str, Mapping[str, Any] | bytes]]) -> str:
    """The actions that the ps has answered."""
    connection = FlightConnection(address, QUICK)
    try:
        return ", ".join(sorted({action for action, record in tries if call(connection, action, record)}))
    finally:
        connection.close()


def _join(task: str) -> dict[str, Any]:
    description = {
        "variables": [{"name": "w", "shape": [4], "dtype": "float32"}],
        "slices": [{"variable": 0, "start": 0, "stop": 4, "ps": 0}],
        "ps_count": 1,
        "rule": {"name": "async"},
        "update_text": "",
        "jax_version": "0",
    }
    who = {"task": task, "incarnation": "attacker", "host": "h", "pid": 1, "version": VERSION}
    return {**who, "description": description}


def takeover(address: str) -> str:
    """Evicts worker:0 and takes its place."""
    description = _join("worker:0")["description"]
    define = {"worker": 0, "ps": 0, "description": description, "initialise": b"x", "update": b"x"}
    leave = {"worker": 0, "failure": ""}
    return _tried(
        address,
        [
            ("leave", leave),
            ("leave", {**leave, "incarnation": "attacker"}),
            ("join", _join("worker:0")),
            ("define", define),
        ],
    )


def orders(address: str) -> str:
    """What only the chief or an admin may ask for."""
    who = {"worker": 0, "incarnation": "attacker"}
    return _tried(
        address,
        [
            ("begin", {**who, "fit": 99, "last_version": 2**61}),
            ("steer", {**who, "leaf": 0, "value": 1e9}),
            ("finish", who),
            ("leave", {**who, "failure": ""}),
            ("shutdown", {"reason": "because"}),
        ],
    )


def names(address: str) -> str:
    """Joins under names that no task has."""
    tasks = ("worker:-100000", f"worker:{10**25}", "worker:\x1b[31mred\x1b[0m", "ps:0", "w" * 100_000, "worker:00")
    return _tried(address, [("join", _join(task)) for task in tasks])


def files(address: str) -> str:
    """Has the ps write and read where it should not."""
    who = {"worker": 0, "incarnation": "attacker", "token": "t"}
    places = ("/etc", "/dev/zero", "/proc/self", "../../..")
    saves = [("save", {**who, "directory": place, "at": 0}) for place in places]
    return _tried(address, [*saves, *(("restore", {**who, "directory": place}) for place in places)])


def forgery(address: str) -> str:
    """Speaks for workers 0 and 1."""
    tries: list[tuple[str, Mapping[str, Any]]] = []
    for worker in (0, 1):
        who = {"worker": worker, "incarnation": ""}
        tries += [("worker_state", {**who, "sequence": 1, "data": b"\xff" * 1000}), ("heartbeat", who), ("pause", who)]
    return _tried(address, tries)


def crowd(address: str) -> str:
    """Joins under very many names."""
    return _tried(address, [("join", _join(f"worker:{n}")) for n in range(100, 2100)])


def garbage(address: str) -> str:
    """Random bytes for every action."""
    dice = random.Random(0)
    tries = [(action, dice.randbytes(dice.randrange(200))) for action in EVERY_ACTION for _ in range(20)]
    return _tried(address, [*tries, ("\x1b[2J", b""), ("x" * 10_000, b""), ("begin/" + "9" * 5000, b"")])


def wrong_proof() -> Prove:
    """A proof that is made up."""
    request = HelloRequest(protocol=handshake.PROTOCOL, nonce=os.urandom(16), name="worker:0", incarnation="attacker")
    return Prove(hello=request, nonce=os.urandom(16), stamp=0.0, cookie=os.urandom(32), proof=os.urandom(32))


def replay(address: str) -> str:
    """Says again what an eavesdropper may have heard, and proofs that are made up."""
    client = flight.connect(f"grpc://{address}")
    achieved = []
    prove = wrong_proof()
    bodies = (encode(prove), os.urandom(56), os.urandom(16) + (1).to_bytes(8, "little") + os.urandom(32))
    for action, body in itertools.product((handshake.PROVE, handshake.INFO, "status"), bodies):
        try:
            list(client.do_action(flight.Action(action, body), flight.FlightCallOptions(timeout=3.0)))
            achieved.append(action)
        except flight.FlightError:
            continue
    client.close()
    return ", ".join(achieved)
