"""What strangers may take of a Flight listener."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow.flight as plain
import pytest
from tests.programs import until
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler

from trainband.cluster.identity import Identity
from trainband.errors import PeerError, RefusalCode, Refused
from trainband.wire.flight import FlightConnection, FlightListener
from trainband.wire.flight.connection_guard import Allowance, ConnectionLimits, Refusals, Taken, to_close
from trainband.wire.flight.sockets import ConnectionKey
from trainband.wire.messages.codec import encode
from trainband.wire.security import handshake
from trainband.wire.security.handshake import ClientSide, Hello, HelloRequest, Prove
from trainband.wire.security.security import Security

LIMITS = ConnectionLimits(
    stranger_s=60.0,
    stranger_bytes=10_000,
    stranger_calls=8,
    strangers=8,
    strangers_per_host=4,
    calls_per_s=5.0,
    call_burst=20,
)
IMPATIENT = replace(LIMITS, stranger_s=0.3)
SECURITY = Security(Identity("ps:0", "x"), b"s" * 32)


class Watched:
    """A listener and what it says."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.said: list[str] = []
        self.listener = FlightListener(
            "127.0.0.1:0", EchoHandler(), FAST, security=SECURITY, limits=limits, say=self.said.append
        )

    def connect(self) -> socket.socket:
        host, _, port = self.listener.address.rpartition(":")
        return socket.create_connection((host, int(port)), 2.0)

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self.said)


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    one = Watched(getattr(request, "param", LIMITS))
    yield one
    one.listener.stop(1.0)


impatient = pytest.mark.parametrize("watched", [IMPATIENT], indirect=True, ids=[""])


def closed(one: socket.socket) -> bool:
    one.settimeout(0.01)
    try:
        while one.recv(1 << 16):  # gRPC says something first
            continue
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@impatient
def test_who_says_nothing_is_cut_off(watched: Watched) -> None:
    with watched.connect() as one:
        assert not closed(one)
        until(lambda: closed(one), "its end")
    until(lambda: watched.has_said("no call on it was accepted in 0.3 s"), "the word")


def test_who_proves_nothing_sends_little(watched: Watched) -> None:
    client = plain.connect(f"grpc://{watched.listener.address}")
    with pytest.raises(plain.FlightError):
        list(client.do_action(plain.Action("join", b"x" * (64 << 20)), plain.FlightCallOptions(timeout=10.0)))
    client.close()
    until(lambda: watched.has_said("sent more than 10,000 bytes"), "the word")


def test_strangers_are_few(watched: Watched) -> None:
    held = [watched.connect() for _ in range(12)]
    until(lambda: watched.has_said("on more than 4 connections from 127.0.0.1"), "the word")
    for one in held:
        one.close()


@impatient
def test_a_member_that_was_slow_connects_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    side = watched.listener._side  # noqa: SLF001
    hello, greeted = side.hello, []

    def slow(asked: HelloRequest) -> Hello:
        greeted.append(asked)
        if len(greeted) == 1:
            until(lambda: watched.has_said("connects again by itself"), "the end of the first connection")
        return hello(asked)

    monkeypatch.setattr(side, "hello", slow)
    member = FlightConnection(watched.listener.address, FAST, Security(Identity("worker:0", "y"), SECURITY.secret))
    assert member.call("echo", b"x", timeout_s=20.0) == b"x"
    member.close()


def test_wrong_proofs_and_greetings_end_their_own_connection_alone(watched: Watched) -> None:
    side = ClientSide(b"", Identity("worker:0", "z"), "")
    proof = Prove(hello=side.request, nonce=os.urandom(16), stamp=0.0, cookie=b"", proof=b"")
    member = FlightConnection(watched.listener.address, FAST, Security(Identity("worker:0", "y"), SECURITY.secret))
    client = plain.connect(f"grpc://{watched.listener.address}")
    for action, body in ((handshake.PROVE, encode(proof)), (handshake.HELLO, encode(side.request)), ("join", b"")):
        watched.said.clear()

        def is_ended_by_another_call(action: str = action, body: bytes = body) -> bool:
            with contextlib.suppress(plain.FlightError):  # also of the connection before, which may be about to end
                list(client.do_action(plain.Action(action, body), plain.FlightCallOptions(timeout=20.0)))
            return watched.has_said("made more than 8 calls")

        until(is_ended_by_another_call, action)
        watched.listener._refusals._reported_at.clear()  # noqa: SLF001 - which says it once a minute
    client.close()
    assert member.call("echo", b"x", timeout_s=20.0) == b"x"
    member.close()


def test_the_ones_too_many_are_drawn_by_lot() -> None:
    dice = random.Random(0)
    flood = {ConnectionKey(f"10.0.0.9:{port}", port): Taken(0, 0, 0.1) for port in range(40)}
    first, *_, last = flood
    closed = [to_close(flood, LIMITS, dice) for _ in range(200)]
    assert {len(one) for one in closed} == {36}
    for key in (first, last):
        assert 5 < sum(key not in one for one in closed) < 40
    elsewhere = ConnectionKey("10.0.0.8:1", 1)
    assert elsewhere not in to_close({**flood, elsewhere: Taken(0, 0, 0.1)}, LIMITS, dice)


@impatient
def test_who_has_proved_itself_stays(watched: Watched) -> None:
    security = Security(Identity("worker:0", "y"), SECURITY.secret)
    connection = FlightConnection(watched.listener.address, FAST, security)
    assert connection.call("echo", b"x" * 100_000, timeout_s=20.0) == b"x" * 100_000
    with watched.connect() as stranger:  # which comes later, and may stay for a while
        until(lambda: closed(stranger), "its end")
    assert connection.call("echo", b"y", timeout_s=20.0) == b"y"
    with pytest.raises(Refused, match="more than 5 calls a second") as caught:  # noqa: PT012
        for _ in range(100):
            connection.call("echo", b"", timeout_s=20.0)
    assert caught.value.code is RefusalCode.BUSY
    connection.close()


def test_a_refusal_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    refusals = Refusals(said.append, "10.0.0.7:2222")
    for port in range(100):
        refusals.report_refusal(f"10.0.0.9:{port}", "because")
    refusals.report_refusal("10.0.0.9:1", "of another thing")
    refusals.report_refusal("10.0.0.8:1", "because")
    assert len(said) == 3
    now = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    refusals.report_refusal("10.0.0.9:5", "because")
    assert len(said) == 4


def test_allowances_come_back_with_time() -> None:
    allowance = Allowance(10.0, 5)
    assert [allowance.admit("a", 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert allowance.admit("b", 0.0)
    assert not allowance.admit("a", 0.05)
    assert allowance.admit("a", 0.2)


SHORT_OF_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from tests.wire.test_connection_guard import IMPATIENT, SECURITY
from tests.wire.harness import FAST
from tests.wire.serving import EchoHandler
from trainband.wire.flight import FlightListener
listener = FlightListener("127.0.0.1:0", EchoHandler(), FAST, security=SECURITY, limits=IMPATIENT)
print(listener.address, flush=True)
sys.stdin.read()
"""


def test_a_newcomer_gets_in_though_strangers_have_all_descriptors() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SHORT_OF_DESCRIPTORS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        host, _, port = address.rpartition(":")
        held = [socket.create_connection((host, int(port)), 2.0) for _ in range(120)]

        def is_let_in() -> bool:
            connection = FlightConnection(address, FAST, Security(Identity("worker:0", "y"), SECURITY.secret))
            try:
                return connection.call("echo", b"hello", timeout_s=2.0) == b"hello"
            except PeerError:
                return False
            finally:
                connection.close()

        until(is_let_in, "an answer")
        for one in held:
            one.close()
        process.communicate(timeout=20.0)
