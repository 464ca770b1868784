"""How two tasks prove to each other that they belong to one job, and how every call afterwards carries that proof.

Both know the job's secret, which never travels. The client asks with a nonce; the listener answers with one of its own
and an HMAC over both nonces and both identities, so that the client knows it for one of the job before it says
anything; the client answers with its own HMAC. A key made of the same things then seals every call: an HMAC over the
session, a counter, the action and the body. A counter that was used is refused, a session belongs to one connection,
and an answer carries an HMAC over the counter of its call, so nothing that was recorded is of use to anybody.

Until a client has proved itself, the listener keeps nothing of it: what it must know again travels in its own answer,
under an HMAC with a key that only it has.

With certificates and no secret, TLS says who calls, and the key is made of the nonces, which only both ends have seen.

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

PROTOCOL = 2
"""Version of what this folder sends. Two tasks must have the same."""

HELLO = "trainband.hello"
PROVE = "trainband.prove"
DOOR = "trainband.door"
STREAM = "trainband.stream"
OPEN_ACTIONS = (HELLO, PROVE)
"""What may be asked without a session."""

_NONCE_BYTES = 16
_STAMP_S = 30.0
"""How long after its hello a client may prove itself."""
_MOST_SESSIONS = 4096
_WINDOW = 1024
"""How far behind the newest counter of a session a call may be: calls of several threads overtake each other."""
_ENVELOPE = struct.Struct("<16sQ32s")
_MAC_BYTES = 32
SEAL_BYTES = _ENVELOPE.size
"""How much longer a sealed body is."""

_Nonce = Annotated[bytes, Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)]
_Mac = Annotated[bytes, Meta(max_length=_MAC_BYTES)]
_Name = Annotated[str, Meta(max_length=32)]
_Token = Annotated[str, Meta(max_length=64)]


class HelloRequest(Struct, frozen=True, kw_only=True):
    """`trainband.hello` -> `Hello`: who is there, and whether it belongs to this job."""

    protocol: int
    nonce: _Nonce
    name: _Name
    incarnation: _Token


class Hello(Struct, frozen=True, kw_only=True):
    """Who listens. Where calls must be sealed, `door` is empty, and the rest of it proves that it knows the secret."""

    protocol: int
    incarnation: _Token
    """New for every listener: tells a task that was restarted from the one before."""
    door: _Token = ""
    """Name of the listener's shared-memory door, empty where it has none."""
    sealed: bool = False
    """Whether calls must be sealed."""
    name: _Name = ""
    nonce: Annotated[bytes, Meta(max_length=_NONCE_BYTES)] = b""
    stamp: float = 0.0
    cookie: _Mac = b""
    proof: _Mac = b""


class Prove(Struct, frozen=True, kw_only=True):
    """`trainband.prove` -> `Proved`: the client's answer to the listener's nonce, with what the listener had said."""

    hello: HelloRequest
    nonce: _Nonce
    stamp: float
    cookie: _Mac
    proof: _Mac


class Proved(Struct, frozen=True, kw_only=True):
    """From now on, calls are sealed with this session."""

    session: _Nonce


class Door(Struct, frozen=True, kw_only=True):
    """`trainband.door`, sealed -> `Door`: where streams of this machine come in."""

    incarnation: _Token
    door: _Token


@dataclass(slots=True)
class Session:
    """One connection of a client that has proved who it is.

    Attributes:
      number: names it in calls.
      identity: of the client.
      peer: the connection that it belongs to.
      up, down: the keys of what the client, and the listener, seals.
    """

    number: bytes
    identity: Identity
    peer: str
    up: bytes
    down: bytes
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
    """The key of a session; `secret` is empty where TLS alone says who is there."""
    transcript = msgspec.msgpack.encode((PROTOCOL, asked, nonce, name, incarnation))
    return _mac(hashlib.sha256(b"trainband session" + secret).digest(), transcript)


def _seal(key: bytes, session: bytes, counter: int, action: str, body: bytes) -> bytes:
    return _mac(key, session, struct.pack("<Q", counter), action.encode(), body)


class ListenerSide:
    """What a listener knows of the clients that have proved themselves. Thread-safe.

    Args:
      secret: the job's; empty where TLS alone says who calls.
      identity: the listener's own.
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
        """The answer to a client's nonce. Keeps nothing."""
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

    def prove(self, proof: Prove, peer: str, certified: Identity | None = None) -> Session:
        """Takes in a client that knows the secret. A proof that comes again changes nothing.

        Args:
          peer: its connection.
          certified: whom its certificate names, where it has one.

        Raises:
          AuthenticationError: it does not know the secret, calls itself what its certificate does not, or is too late.
        """
        asked = proof.hello
        if not hmac.compare_digest(proof.cookie, self._cookie(asked, proof.nonce, proof.stamp)):
            raise AuthenticationError("the proof does not belong to a question of this listener.")
        if not 0 <= self._clock() - proof.stamp <= _STAMP_S:
            raise AuthenticationError(f"the proof came more than {_STAMP_S:g} s after its question.")
        key = _session_key(self._secret, asked, proof.nonce, self._identity.name, self._identity.incarnation)
        if not hmac.compare_digest(proof.proof, _mac(key, b"client")):
            raise AuthenticationError(
                f"whoever calls itself {asked.name!r} does not know this job's secret; give all its tasks the same "
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
        session = Session(proof.nonce, identity, peer, _mac(key, b"up"), _mac(key, b"down"))
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
        """The session, the counter and the body of a sealed call.

        Args:
          peer: the connection that it came over; `None` for a stream that travels otherwise.

        Raises:
          AuthenticationError: it is not sealed; or, with the code `NO_SESSION`, not by a session of this connection, or
            it has come before.
        """
        if len(sealed) < _ENVELOPE.size:
            raise AuthenticationError("the caller proves nothing: it has none of this job's credentials.")
        number, counter, mac = _ENVELOPE.unpack_from(sealed)
        with self._lock:
            session = self._sessions.get(number)
            if session is not None:
                self._sessions.move_to_end(number)
        if session is None or peer not in (None, session.peer):
            raise _unknown("no session of this connection has sealed it")
        body = sealed[_ENVELOPE.size :]
        if not hmac.compare_digest(mac, _seal(session.up, number, counter, action, body)):
            raise _unknown("its seal is broken")
        if not session.accept(counter):
            raise _unknown("it has come before")
        return session, counter, body

    @staticmethod
    def seal_answer(session: Session, counter: int, answer: bytes) -> bytes:
        """The answer to the call with this counter, as it travels."""
        return _seal(session.down, session.number, counter, "", answer) + answer

    def identity_of(self, peer: str) -> Identity | None:
        """Who has last proved itself on a connection; `None` for nobody."""
        with self._lock:
            for session in reversed(self._sessions.values()):
                if session.peer == peer:
                    return session.identity
        return None

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Drops the sessions of the connections that have gone."""
        with self._lock:
            for number in [number for number, session in self._sessions.items() if gone(session.peer)]:
                del self._sessions[number]

    def _cookie(self, asked: HelloRequest, nonce: bytes, stamp: float) -> bytes:
        return _mac(self._boot_key, msgspec.msgpack.encode((asked, nonce, stamp)))


def _unknown(why: str) -> AuthenticationError:
    return AuthenticationError(f"the call was refused: {why}.", RefusalCode.NO_SESSION)


class ClientSide:
    """A client's side of the handshake with one listener. Thread-safe once it has a session.

    Args:
      secret: the job's; empty where TLS alone says who calls.
      identity: the client's own.
      address: of the listener, for messages.
    """

    def __init__(self, secret: bytes, identity: Identity, address: str) -> None:
        self._secret = secret
        self._address = address
        self._lock = threading.Lock()
        self._counter = 0
        self._keys: tuple[bytes, bytes, bytes] | None = None
        self._key = b""
        self.request = HelloRequest(
            protocol=PROTOCOL,
            nonce=os.urandom(_NONCE_BYTES),
            name=identity.name,
            incarnation=identity.incarnation,
        )
        """What it asks with."""

    def prove(self, hello: Hello) -> Prove:
        """The proof for a listener that has proved itself.

        Raises:
          AuthenticationError: it has not.
        """
        if not hello.sealed:
            raise AuthenticationError(
                f"{self._address} serves without security, and this task belongs to a job with a secret; give that "
                "task the job's TRAINBAND_SECRET_FILE, too, or look whether another job has the address."
            )
        key = _session_key(self._secret, self.request, hello.nonce, hello.name, hello.incarnation)
        if not hmac.compare_digest(hello.proof, _mac(key, b"listener")):
            raise AuthenticationError(
                f"{self._address} does not know this job's secret: it belongs to another job, or is no task of ours. "
                "Check the address, and that all tasks have the same TRAINBAND_SECRET_FILE."
            )
        self._key = key
        return Prove(
            hello=self.request,
            nonce=hello.nonce,
            stamp=hello.stamp,
            cookie=hello.cookie,
            proof=_mac(key, b"client"),
        )

    def begin(self, proved: Proved) -> None:
        """Seals with this session from now on."""
        self._keys = proved.session, _mac(self._key, b"up"), _mac(self._key, b"down")

    def seal(self, action: str, body: bytes) -> tuple[int, bytes]:
        """The counter of a call, and its body as it travels."""
        assert self._keys is not None
        session, up, _ = self._keys
        with self._lock:
            self._counter += 1
            counter = self._counter
        return counter, _ENVELOPE.pack(session, counter, _seal(up, session, counter, action, body)) + body

    def open_answer(self, counter: int, sealed: bytes) -> bytes:
        """The answer to the call with this counter.

        Raises:
          ProtocolError: somebody else gave it.
        """
        assert self._keys is not None
        session, _, down = self._keys
        mac, answer = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _seal(down, session, counter, "", answer)):
            raise ProtocolError(f"an answer of {self._address} does not bear its seal: somebody has altered it.")
        return answer
