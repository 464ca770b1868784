"""A proof over a plain socket, in both directions, that both ends know the job's secret.

The listener begins with a nonce; the caller answers with its own and an HMAC over both; the listener answers with an
HMAC of its own. What travels afterwards is neither encrypted nor sealed. Source: as `trainband.wire.handshake`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket

from trainband.errors import AuthenticationError

_NONCE_BYTES = 16
_MAC_BYTES = 32
PROOF_S = 5.0
"""For the other end's part of it."""


def ask_proof(connection: socket.socket, secret: bytes, purpose: str) -> bool:
    """The listener's side: whether the caller knows the secret. Without a secret, nothing is said.

    Args:
      purpose: of the connection; a proof for one is none for another.
    """
    if not secret:
        return True
    connection.settimeout(PROOF_S)
    nonce = os.urandom(_NONCE_BYTES)
    try:
        connection.sendall(nonce)
        answer = _receive(connection, _NONCE_BYTES + _MAC_BYTES)
        theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _mac(secret, b"caller", purpose, nonce, theirs)):
            return False
        connection.sendall(_mac(secret, b"listener", purpose, nonce, theirs))
    except OSError:
        return False
    return True


def prove(connection: socket.socket, secret: bytes, purpose: str, where: str) -> None:
    """The caller's side. Without a secret, nothing is said.

    Args:
      where: who is at the other end, for messages.

    Raises:
      AuthenticationError: the listener does not know the secret, or does not take our proof.
      OSError: it has gone, or says nothing.
    """
    if not secret:
        return
    connection.settimeout(PROOF_S)
    theirs, nonce = _receive(connection, _NONCE_BYTES), os.urandom(_NONCE_BYTES)
    connection.sendall(nonce + _mac(secret, b"caller", purpose, theirs, nonce))
    try:
        answer = _receive(connection, _MAC_BYTES)
    except ConnectionError:
        answer = b""
    if not hmac.compare_digest(answer, _mac(secret, b"listener", purpose, theirs, nonce)):
        raise AuthenticationError(
            f"{where} and this task do not know the same secret; give all tasks of the job the same "
            "TRAINBAND_SECRET_FILE."
        )


def _mac(secret: bytes, side: bytes, purpose: str, asked: bytes, answered: bytes) -> bytes:
    key = hashlib.sha256(b"trainband proof" + secret).digest()
    return hmac.digest(key, b"\0".join((side, purpose.encode(), asked + answered)), hashlib.sha256)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = connection.recv(count - len(data))
        if not got:
            raise ConnectionError("the other end has gone")
        data += got
    return data
