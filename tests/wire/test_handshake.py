"""The handshake and the seals, without a network: what an eavesdropper, a stranger and a relay can do with them."""

from __future__ import annotations

import itertools
import os

import msgspec
import pytest

from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ProtocolError, RefusalCode
from trainband.wire.security.handshake import ClientSide, HelloRequest, ListenerSide, Proved, Session

SECRET = os.urandom(32)
PEER = "10.0.0.9:40000"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def listener(secret: bytes = SECRET, clock: Clock | None = None) -> ListenerSide:
    return ListenerSide(secret, Identity("ps:0", "of the ps"), clock or Clock())


def client(secret: bytes = SECRET, name: str = "worker:1") -> ClientSide:
    return ClientSide(secret, Identity(name, "of the worker"), "10.0.0.7:2222")


def proved(client: ClientSide, listener: ListenerSide, peer: str = PEER) -> Session:
    proof = client.prove(listener.hello(client.request))
    session = listener.prove(proof, peer)
    client.start_session(Proved(session=session.number))
    return session


def refused(listener: ListenerSide, action: str, sealed: bytes, peer: str | None = PEER) -> RefusalCode:
    with pytest.raises(AuthenticationError) as caught:
        listener.open(action, sealed, peer)
    return caught.value.code


class TestProof:
    def test_both_know_the_secret(self) -> None:
        there, here = listener(), client()
        session = proved(here, there)
        assert session.identity == Identity("worker:1", "of the worker")
        counter, sealed = here.seal("status", b"body")
        assert b"body" in sealed
        assert SECRET not in sealed
        assert there.open("status", sealed, PEER) == (session, counter, b"body")
        assert here.open_answer(counter, there.seal_answer(session, counter, b"answer")) == b"answer"

    def test_a_listener_that_does_not_know_it_hears_nothing(self) -> None:
        here = client()
        with pytest.raises(AuthenticationError, match=r"10\.0\.0\.7:2222 does not know this job's secret"):
            here.prove(listener(os.urandom(32)).hello(here.request))

    def test_one_without_security_is_not_trusted(self) -> None:
        here = client()
        open_one = msgspec.structs.replace(listener().hello(here.request), sealed=False)
        with pytest.raises(AuthenticationError, match="serves without security"):
            here.prove(open_one)

    def test_a_client_that_does_not_know_it(self) -> None:
        there, here = listener(), client()
        hello = there.hello(here.request)
        proof = msgspec.structs.replace(here.prove(hello), proof=hello.proof)  # the listener's own, reflected
        with pytest.raises(AuthenticationError, match="'worker:1' does not know this job's secret"):
            there.prove(proof, PEER)

    @pytest.mark.parametrize("name", ["worker:2", "admin", "ps:0"])
    def test_nobody_can_change_who_asked(self, name: str) -> None:
        there, here = listener(), client()
        proof = here.prove(there.hello(here.request))
        other = msgspec.structs.replace(proof, hello=msgspec.structs.replace(proof.hello, name=name))
        with pytest.raises(AuthenticationError):
            there.prove(other, PEER)

    def test_a_proof_is_for_one_listener(self) -> None:
        there, here = listener(), client()
        proof = here.prove(there.hello(here.request))
        with pytest.raises(AuthenticationError, match="does not belong to a question of this listener"):
            listener().prove(proof, PEER)

    def test_a_late_proof(self) -> None:
        clock = Clock()
        there, here = listener(clock=clock), client()
        proof = here.prove(there.hello(here.request))
        clock.now += 31.0
        with pytest.raises(AuthenticationError, match="more than 30 s after"):
            there.prove(proof, PEER)

    def test_a_proof_that_comes_again_begins_nothing_anew(self) -> None:
        there, here = listener(), client()
        proof = here.prove(there.hello(here.request))
        session = there.prove(proof, PEER)
        here.start_session(Proved(session=session.number))
        _, sealed = here.seal("finish", b"")
        there.open("finish", sealed, PEER)
        assert there.prove(proof, PEER) is session
        assert refused(there, "finish", sealed) is RefusalCode.NO_SESSION
        with pytest.raises(AuthenticationError, match="on another connection"):
            there.prove(proof, "10.6.6.6:1")

    def test_a_certificate_says_who_may_call_itself_what(self) -> None:
        for name, certified, fits in [
            ("worker:1", "worker:1", True),
            ("worker:1", "worker", True),
            ("worker:1", "worker:2", False),
            ("chief:0", "worker", False),
            ("worker", "worker:1", False),
        ]:
            there, here = listener(), client(name=name)
            proof = here.prove(there.hello(here.request))
            if fits:
                assert there.prove(proof, PEER, Identity(certified)).identity.name == name
            else:
                with pytest.raises(AuthenticationError, match=f"the certificate of {certified} calls itself {name}"):
                    there.prove(proof, PEER, Identity(certified))

    def test_strangers_leave_nothing_behind(self) -> None:
        there = listener()
        for number in range(1000):
            there.hello(HelloRequest(protocol=2, nonce=os.urandom(16), name=f"worker:{number}", incarnation="x"))
        assert not there._sessions  # noqa: SLF001

    def test_sessions_are_bounded_and_the_idle_ones_go(self) -> None:
        there, here = listener(), client()
        proved(here, there)
        for _ in range(4095):
            proved(client(), there)
        there.open("status", here.seal("status", b"")[1], PEER)
        others = [client() for _ in range(2)]
        for other in others:
            proved(other, there)
        there.open("status", here.seal("status", b"")[1], PEER)
        assert len(there._sessions) == 4096  # noqa: SLF001


class TestSeals:
    def test_a_call_counts_once_and_for_what_it_was(self) -> None:
        there, here = listener(), client()
        proved(here, there)
        _, sealed = here.seal("begin", b"body")
        assert refused(there, "finish", sealed) is RefusalCode.NO_SESSION
        assert refused(there, "begin", sealed + b"x") is RefusalCode.NO_SESSION
        assert refused(there, "begin", sealed, "10.0.0.9:40001") is RefusalCode.NO_SESSION
        for place in range(0, len(sealed), 7):
            changed = bytes(b ^ (i == place) for i, b in enumerate(sealed))
            assert refused(there, "begin", changed) is RefusalCode.NO_SESSION
        there.open("begin", sealed, PEER)
        assert refused(there, "begin", sealed) is RefusalCode.NO_SESSION

    def test_who_proves_nothing_is_told_so(self) -> None:
        assert refused(listener(), "status", b"") is RefusalCode.UNPROVED

    def test_calls_may_overtake_each_other(self) -> None:
        there, here = listener(), client()
        proved(here, there)
        calls = [here.seal("status", b"")[1] for _ in range(1024)]
        for sealed in itertools.chain(calls[512:], reversed(calls[:512])):
            there.open("status", sealed, PEER)
        assert all(refused(there, "status", sealed) is RefusalCode.NO_SESSION for sealed in calls)

    def test_one_from_long_ago_is_refused(self) -> None:
        there, here = listener(), client()
        proved(here, there)
        old = here.seal("status", b"")[1]
        for _ in range(1024):
            newest = here.seal("status", b"")[1]
        there.open("status", newest, PEER)
        assert refused(there, "status", old) is RefusalCode.NO_SESSION

    def test_an_answer_is_for_its_call(self) -> None:
        there, here = listener(), client()
        session = proved(here, there)
        first, _ = here.seal("status", b"")
        second, _ = here.seal("status", b"")
        answer = there.seal_answer(session, first, b"3 workers")
        with pytest.raises(ProtocolError, match="has an invalid seal"):
            here.open_answer(second, answer)
        with pytest.raises(ProtocolError, match="has an invalid seal"):
            here.open_answer(first, answer.replace(b"3", b"4"))
