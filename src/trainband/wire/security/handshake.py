"""How two tasks prove to each other that they belong to one job, and how every later call carries that proof.

Both know the job's secret, which is never sent. The client sends a nonce; the listener answers with its own nonce
and an HMAC over both nonces and both identities, which shows the client that it belongs to the job before the client
says anything; the client answers with its own HMAC. A key derived from the same data then seals every call: an HMAC
over the session, a counter, the action and the body. A used counter is refused, a session belongs to one connection,
and an answer carries an HMAC over the counter of its call, so recorded messages are useless.

Until a client has proved its identity, the listener stores nothing of it: the state it needs later is in its own
answer, under an HMAC with a key that only the listener has.

An HMAC and not TLS, because TLS in gRPC costs 40% of the throughput of large pushes and 12% of small steps (see
bench/RESULTS.md), and many jobs run on networks that only their own machines can listen to.

With certificates and no secret, TLS identifies the caller, and the key is derived from the nonces, which only both ends
have seen.

Source: the challenge is that of ISO/IEC 9798-4 (three pass mutual authentication with a cryptographic check function);
the window of counters is that of RFC 4303, section 3.4.3.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from trainband.cluster.identity import Identity
from trainband.errors import AuthenticationError, ClusterError, ProtocolError, RefusalCode
from trainband.wire.messages import fields as f

PROTOCOL = 3
"""Version of the messages of this folder. Two tasks must have the same."""

HELLO = "trainband.hello"
PROVE = "trainband.prove"
INFO = "trainband.info"
STREAM = "trainband.stream"
READ = "trainband.read"
"""Prefix of the action for which the ticket of a read is sealed; the name of the Flight method follows."""
OPEN_ACTIONS = (HELLO, PROVE)
"""Actions allowed without a session."""

_NONCE_BYTES = 16
_STAMP_S = 30.0
"""Seconds after its hello in which a client may prove its identity."""
_MOST_SESSIONS = 4096
_WINDOW = 1024
"""How far a call may be behind the newest counter of a session: calls of several threads overtake each other."""
_ENVELOPE = struct.Struct("<16sQ32s")
_MAC_BYTES = 32

_Nonce = Annotated[bytes, Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]
_Mac = Annotated[bytes, Meta(max_length=_MAC_BYTES)]
_Name = Annotated[str, Meta(pattern=r"\A[ -~]{0,32}\Z")]


class HelloRequest(Struct, frozen=True, kw_only=True):
    """`trainband.hello` -> `Hello`: who is there, and whether it belongs to this job."""

    protocol: int
    nonce: _Nonce
    name: _Name
    incarnation: f.Token


class Hello(Struct, frozen=True, kw_only=True):
    """The listener. If calls must be sealed, `local_socket` is empty, and the rest proves that it knows the secret."""

    protocol: int
    incarnation: f.Token
    """New for every listener: distinguishes a restarted task from the one before."""
    local_socket: f.Token = ""
    """Name of the Unix socket that opens shared-memory streams; empty if the listener serves none."""
    sealed: bool = False
    """Whether calls must be sealed."""
    name: _Name = ""
    nonce: Annotated[bytes, Meta(max_length=_NONCE_BYTES)] = b""
    stamp: float = 0.0
    cookie: _Mac = b""
    proof: _Mac = b""


class Prove(Struct, frozen=True, kw_only=True):
    """`trainband.prove` -> `Proved`: the client's answer to the listener's nonce, with the listener's data."""

    hello: HelloRequest
    nonce: _Nonce
    stamp: float
    cookie: _Mac
    proof: _Mac


class Proved(Struct, frozen=True, kw_only=True):
    """Calls are now sealed with this session."""

    session: _Nonce


class ListenerInfo(Struct, frozen=True, kw_only=True):
    """`trainband.info`, sealed -> `ListenerInfo`: the listener, and how to open shared-memory streams."""

    incarnation: f.Token
    local_socket: f.Token


@dataclass(slots=True)
class Session:
    """One connection of an authenticated client.

    Attributes:
      number: identifies it in calls.
      identity: the client's identity.
      peer: the connection that it belongs to.
      certificate: the client's, by the owner's name in TLS; empty without one.
      up, down: the keys with which the client, and the listener, seals.
    """

    number: bytes
    identity: Identity
    peer: str
    up: bytes = field(repr=False)
    down: bytes = field(repr=False)
    certificate: bytes = b""
    newest: int = 0
    window: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, counter: int) -> bool:
        """Whether this counter is used for the first time."""
        with self.lock:
            ahead = counter - self.newest
            if ahead > 0:
                self.window = ((self.window << ahead) | 1) & ((1 << _WINDOW) - 1) if ahead < _WINDOW else 1
                self.newest = counter
                return True
            bit = 1 << -ahead
            if -ahead >= _WINDOW or self.window & bit:
                return False
            self.window |= bit
            return True


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(struct.pack("<Q", len(part)) + part for part in parts), hashlib.sha256)


def _session_key(secret: bytes, asked: HelloRequest, nonce: bytes, name: str, incarnation: str) -> bytes:
    """Derives the key of a session; `secret` is empty if only TLS authenticates."""
    transcript = msgspec.msgpack.encode((PROTOCOL, asked, nonce, name, incarnation))
    return _mac(hashlib.sha256(b"trainband session" + secret).digest(), transcript)


def _seal(key: bytes, session: bytes, counter: int, action: str, body: bytes) -> bytes:
    return _mac(key, session, struct.pack("<Q", counter), action.encode(), body)


class ListenerSide:
    """A listener's side of the handshake. Thread-safe.

    Args:
      secret: the job's; empty if only TLS authenticates.
      clock: monotonic seconds.
    """

    def __init__(self, secret: bytes, identity: Identity, clock: Callable[[], float]) -> None:
        self._secret = secret
        self._identity = identity
        self._clock = clock
        self._boot_key = os.urandom(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def hello(self, asked: HelloRequest) -> Hello:
        """Answers a client's nonce. Stores nothing."""
        nonce, stamp = os.urandom(_NONCE_BYTES), self._clock()
        name, incarnation = self._identity.name, self._identity.incarnation
        key = _session_key(self._secret, asked, nonce, name, incarnation)
        return Hello(
            protocol=PROTOCOL,
            incarnation=incarnation,
            sealed=True,
            name=name,
            nonce=nonce,
            stamp=stamp,
            cookie=self._cookie(asked, nonce, stamp),
            proof=_mac(key, b"listener"),
        )

    def prove(self, proof: Prove, peer: str, certified: Identity | None = None, certificate: bytes = b"") -> Session:
        """Admits a client that knows the secret. Repeating a proof changes nothing.

        Args:
          certified: the identity in its certificate, if it has one.
          certificate: the owner's name in TLS.

        Raises:
          AuthenticationError: it does not know the secret, its name differs from its certificate's, or it is too late.
        """
        asked = proof.hello
        if not hmac.compare_digest(proof.cookie, self._cookie(asked, proof.nonce, proof.stamp)):
            raise AuthenticationError("the proof does not belong to a question of this listener.")
        if not 0 <= self._clock() - proof.stamp <= _STAMP_S:
            raise AuthenticationError(f"the proof came more than {_STAMP_S:g} s after its question.")
        key = _session_key(self._secret, asked, proof.nonce, self._identity.name, self._identity.incarnation)
        if not hmac.compare_digest(proof.proof, _mac(key, b"client")):
            raise AuthenticationError(
                f"the task named {asked.name!r} does not know this job's secret; give all its tasks the same "
                "TRAINBAND_SECRET_FILE."
            )
        try:
            identity = Identity(asked.name, asked.incarnation)
        except ClusterError as exc:
            raise AuthenticationError(str(exc)) from None
        if certified is not None and not certified.covers(asked.name):
            raise AuthenticationError(
                f"a task with the certificate of {certified.name} calls itself {asked.name}; give it a certificate of "
                f"its own: trainband certs issue DIR {asked.name}."
            )
        session = Session(proof.nonce, identity, peer, _mac(key, b"up"), _mac(key, b"down"), certificate)
        with self._lock:
            known = self._sessions.get(session.number)
            if known is None:
                self._sessions[session.number] = session
                while len(self._sessions) > _MOST_SESSIONS:
                    self._sessions.popitem(last=False)
            elif known.peer != peer:
                raise AuthenticationError("this proof has been used on another connection.")
            return known or session

    def open(self, action: str, sealed: bytes, peer: str | None) -> tuple[Session, int, bytes]:
        """Returns the session, the counter and the body of a sealed call.

        Args:
          peer: its connection; `None` for a stream over another transport.

        Raises:
          AuthenticationError: it is not sealed; or, with the code `NO_SESSION`, not by a session of this connection, or
            it is a repetition.
        """
        if len(sealed) < _ENVELOPE.size:
            raise AuthenticationError("the caller has no credentials of this job.")
        number, counter, mac = _ENVELOPE.unpack_from(sealed)
        with self._lock:
            session = self._sessions.get(number)
            if session is not None:
                self._sessions.move_to_end(number)
        if session is None or peer not in (None, session.peer):
            raise _unknown("it is not sealed by a session of this connection")
        body = sealed[_ENVELOPE.size :]
        if not hmac.compare_digest(mac, _seal(session.up, number, counter, action, body)):
            raise _unknown("its seal is invalid")
        if not session.accept(counter):
            raise _unknown("it is a repetition")
        return session, counter, body

    @staticmethod
    def seal_answer(session: Session, counter: int, answer: bytes) -> bytes:
        """Seals the answer to the call with this counter."""
        return _seal(session.down, session.number, counter, "", answer) + answer

    def _cookie(self, asked: HelloRequest, nonce: bytes, stamp: float) -> bytes:
        return _mac(self._boot_key, msgspec.msgpack.encode((asked, nonce, stamp)))


def _unknown(why: str) -> AuthenticationError:
    return AuthenticationError(f"the call was refused: {why}.", RefusalCode.NO_SESSION)


class ClientSide:
    """A client's side of the handshake with one listener. Thread-safe once it has a session.

    Args:
      secret: the job's; empty if only TLS authenticates.
    """

    def __init__(self, secret: bytes, identity: Identity, address: str) -> None:
        self._secret = secret
        self._address = address
        self._lock = threading.Lock()
        self._counter = 0
        self._keys: tuple[bytes, bytes, bytes] | None = None
        self._key = b""
        self.request = HelloRequest(
            protocol=PROTOCOL, nonce=os.urandom(_NONCE_BYTES), name=identity.name, incarnation=identity.incarnation
        )
        """Its request."""

    def prove(self, hello: Hello) -> Prove:
        """Returns the proof for a listener that has proved its identity.

        Raises:
          AuthenticationError: it has not.
        """
        if not hello.sealed:
            raise AuthenticationError(
                f"{self._address} serves without security, but this task proves itself with a secret; give both the "
                "same TRAINBAND_SECRET_FILE, or start both with TRAINBAND_INSECURE=1, unless another job has the "
                "address."
            )
        key = _session_key(self._secret, self.request, hello.nonce, hello.name, hello.incarnation)
        if not hmac.compare_digest(hello.proof, _mac(key, b"listener")):
            raise AuthenticationError(
                f"{self._address} does not know this job's secret: it belongs to another job or to another user. Check "
                "the address, and give all tasks the same TRAINBAND_SECRET_FILE. Tasks without one have your own "
                "secret, and find it only if HOME and XDG_STATE_HOME are the same for all of them."
            )
        self._key = key
        return Prove(
            hello=self.request, nonce=hello.nonce, stamp=hello.stamp, cookie=hello.cookie, proof=_mac(key, b"client")
        )

    def start_session(self, proved: Proved) -> None:
        """Seals with this session from now on."""
        self._keys = proved.session, _mac(self._key, b"up"), _mac(self._key, b"down")

    def seal(self, action: str, body: bytes) -> tuple[int, bytes]:
        """Returns the counter of a call, and its sealed body."""
        assert self._keys is not None
        session, up, _ = self._keys
        with self._lock:
            self._counter += 1
            counter = self._counter
        return counter, _ENVELOPE.pack(session, counter, _seal(up, session, counter, action, body)) + body

    def open_answer(self, counter: int, sealed: bytes) -> bytes:
        """Opens the sealed answer to the call with this counter.

        Raises:
          ProtocolError: it is not sealed by the listener.
        """
        assert self._keys is not None
        session, _, down = self._keys
        mac, answer = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _seal(down, session, counter, "", answer)):
            raise ProtocolError(f"an answer of {self._address} has an invalid seal: it was altered on the way.")
        return answer
