"""A mutual proof, over a plain socket, that both ends belong to the job.

With certificates, both ends make a TLS handshake, in which each shows its own; the listener then reports, encrypted,
whether it accepts the caller. With a secret, the listener begins with a nonce; the caller answers with its own and an
HMAC over both; the listener answers with its own HMAC. A job that has both does one after the other. This neither
encrypts nor seals later traffic. Source: as `trainband.wire.security.handshake`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from trainband.cluster.certificate_files import CertificateFiles, Revocations, read_uri
from trainband.cluster.credentials import Credentials
from trainband.cluster.identity import Identity, Role
from trainband.errors import AuthenticationError, ClusterError
from trainband.runtime.base import Clock
from trainband.runtime.formatting import printable
from trainband.spmd.sockets import Socket

_NONCE_BYTES = 16
_MAC_BYTES = 32
_REFUSED = bytes(_MAC_BYTES)
"""The listener's answer to a caller without the secret. It just hangs up on one that may try again."""
RENDEZVOUS, COORDINATION = PURPOSES = "rendezvous", "coordination"
"""The purposes of connections."""
PROOF_S = 5.0
"""Deadline for the other end's part."""
_RECORD_HEADER_BYTES = 5
_TAKEN_IN = "taken in"
_MOST_VERDICT = 400

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Peer:
    """A caller that has proved itself.

    Attributes:
      identity: in its certificate; `None` if the job has only a secret, or nothing.
    """

    identity: Identity | None = None

    def may_be(self, task: str) -> bool:
        """Whether it may be this task."""
        return self.identity is None or self.identity.covers(task)


class Proof:
    """A task's means to prove itself and to check others.

    Args:
      secret: the job's; empty without one.
      certificates: the task's own; `None` without any.
      clock: monotonic seconds.
    """

    def __init__(
        self, secret: bytes = b"", certificates: CertificateFiles | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._secret = secret
        self._clock = clock
        self._certificates = certificates
        self._revoked = None if certificates is None else Revocations(certificates.directory)

    @staticmethod
    def of(credentials: Credentials, task: str) -> Proof:
        """Returns the proof of a task with these credentials.

        Raises:
          ClusterError: its certificates cannot be used.
        """
        tls = credentials.tls
        return Proof(credentials.secret, None if tls is None else CertificateFiles.find(tls, Identity(task)))

    def __bool__(self) -> bool:
        """Whether anything is proved at all."""
        return bool(self._secret) or self._certificates is not None

    def ask(self, connection: Socket, purpose: str) -> Peer | None:
        """The listener's side: returns the caller, or `None` if it has not proved that it is a worker of the job.

        Args:
          purpose: of the connection; a proof for one is invalid for another.
        """
        line, identity = _Line(connection, self._clock), None
        try:
            if self._certificates is not None:
                identity = self._ask_certificate(line)
            if self._secret:
                self._ask_secret(line, purpose)
        # ssl's errors are OSErrors. A ClusterError means that the list of revoked certificates cannot be read.
        except (OSError, AuthenticationError, ClusterError):
            return None
        return Peer(identity)

    def present(self, connection: Socket, purpose: str, listener: str, where: str) -> None:
        """The caller's side.

        Args:
          purpose: of the connection.
          listener: the task at the other end.
          where: who is there, for messages.

        Raises:
          AuthenticationError: the listener has not proved itself, or rejects our proof.
          OSError: it has gone, is silent, or is of the job but listens for another purpose: try again.
        """
        line = _Line(connection, self._clock)
        if self._certificates is not None:
            self._present_certificate(line, listener, where)
        if self._secret:
            self._present_secret(line, purpose, where)

    def _ask_certificate(self, line: _Line) -> Identity:
        channel = self._channel(line, is_listener=True)
        channel.shake_hands()
        try:
            identity = self._valid(channel.certificate)
            if Role.WORKER not in identity.roles:
                raise AuthenticationError(f"the certificate of {identity.name} is not a worker's.")
        except AuthenticationError as exc:
            channel.write(str(exc))
            raise
        channel.write(_TAKEN_IN)
        return identity

    def _present_certificate(self, line: _Line, listener: str, where: str) -> None:
        channel = self._channel(line, is_listener=False)
        try:
            channel.shake_hands()
            identity = self._valid(channel.certificate)
            if not identity.covers(listener):
                raise AuthenticationError(f"{where} has the certificate of {identity.name}; check the address.")
            verdict = channel.read()
        except ssl.SSLError as exc:
            why = getattr(exc, "verify_message", "") or (exc.reason or str(exc)).lower().replace("_", " ")
            raise AuthenticationError(
                f"{where} and this task reject each other's certificates ({why}); check that both have the same "
                "ca.pem, that none has expired (`trainband certs list`), and that both have TRAINBAND_TLS."
            ) from None
        if verdict != _TAKEN_IN:
            raise AuthenticationError(f"{where} refuses this task: {printable(verdict, _MOST_VERDICT)}")

    def _valid(self, certificate: str) -> Identity:
        """Returns the owner of a certificate that the authority has issued."""
        assert self._revoked is not None
        try:
            certified = read_uri(certificate)
        except ClusterError as exc:
            raise AuthenticationError(str(exc)) from None
        if certified.serial in self._revoked:
            raise AuthenticationError(f"the certificate of {certified.identity.name} was revoked.")
        return certified.identity

    def _channel(self, line: _Line, *, is_listener: bool) -> _Channel:
        files = self._certificates
        assert files is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listener else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # `_valid` and its callers check the owner
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.authority_path)
        context.load_cert_chain(files.certificate_path, files.key_path)
        if is_listener:
            context.num_tickets = 0  # unread records would be taken for what follows
        return _Channel(line, context, is_listener=is_listener)

    def _ask_secret(self, line: _Line, purpose: str) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        line.send(nonce)
        answer = line.receive(_NONCE_BYTES + _MAC_BYTES)
        theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, self._mac(b"caller", purpose, nonce, theirs)):
            if not any(hmac.compare_digest(proof, self._mac(b"caller", one, nonce, theirs)) for one in PURPOSES):
                line.send(_REFUSED)
            raise AuthenticationError("it does not know the secret, or has come for something else.")
        line.send(self._mac(b"listener", purpose, nonce, theirs))

    def _present_secret(self, line: _Line, purpose: str, where: str) -> None:
        theirs, nonce = line.receive(_NONCE_BYTES), os.urandom(_NONCE_BYTES)
        line.send(nonce + self._mac(b"caller", purpose, theirs, nonce))
        answer = line.receive(_MAC_BYTES)
        if not hmac.compare_digest(answer, self._mac(b"listener", purpose, theirs, nonce)):
            raise AuthenticationError(
                f"{where} and this task do not know the same secret; give all tasks of the job the same "
                "TRAINBAND_SECRET_FILE."
            )

    def _mac(self, side: bytes, purpose: str, asked: bytes, answered: bytes) -> bytes:
        key = hashlib.sha256(b"trainband proof" + self._secret).digest()
        return hmac.digest(key, b"\0".join((side, purpose.encode(), asked + answered)), hashlib.sha256)


class _Line:
    """A socket with the deadline of a proof."""

    def __init__(self, connection: Socket, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._until = clock() + PROOF_S

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        self._wait_no_longer()
        self._connection.sendall(data)

    def receive(self, count: int) -> bytes:
        """Receives exactly `count` bytes."""
        data = b""
        while len(data) < count:
            self._wait_no_longer()
            got = self._connection.recv(count - len(data))
            if not got:
                raise ConnectionError("the other end has gone")
            data += got
        return data

    def _wait_no_longer(self) -> None:
        left_s = self._until - self._clock()
        if left_s <= 0:
            raise TimeoutError("the other end takes too long")
        self._connection.settimeout(left_s)


class _Channel:
    """TLS over a socket that is plain before and afterwards: reads nothing beyond the last record."""

    def __init__(self, line: _Line, context: ssl.SSLContext, *, is_listener: bool) -> None:
        self._line = line
        self._come, self._go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._go, server_side=is_listener)

    def shake_hands(self) -> None:
        """Makes the handshake."""
        self._until_done(self._tls.do_handshake)

    @property
    def certificate(self) -> str:
        """The URI of the owner in the other end's certificate; empty without one."""
        found: dict[str, Any] = self._tls.getpeercert() or {}
        return next((str(value) for kind, value in found.get("subjectAltName", ()) if kind == "URI"), "")

    def write(self, text: str) -> None:
        """Sends a text in its own record."""
        self._tls.write(text.encode())
        self._flush()

    def read(self) -> str:
        """Returns the text of the next record that has one."""
        return self._until_done(lambda: self._tls.read(_MOST_VERDICT)).decode("utf-8", "replace")

    def _until_done(self, step: Callable[[], Result]) -> Result:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                header = self._line.receive(_RECORD_HEADER_BYTES)
                self._come.write(header + self._line.receive(int.from_bytes(header[3:])))
            finally:
                self._flush()  # alerts, too

    def _flush(self) -> None:
        if data := self._go.read():
            self._line.send(data)
