"""What a ps and its checker say to each other: records, one at a time, over a pair of sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from msgspec import Struct

from trainband.ps.server.programs.limits import ProgramLimits
from trainband.ps.server.programs.signature import Signature

_LENGTH = struct.Struct("<Q")


class Question(Struct, frozen=True):
    """A program to check, with its shard's signature."""

    initialise: bytes
    update: bytes
    jax: str
    signature: Signature
    trained: tuple[bool, ...]
    limits: ProgramLimits
    time_s: float
    x64: bool
    """Whether this process's JAX computes with 64 bits."""


class Verdict(Struct, frozen=True):
    """The program, written anew by the checker, or why there is none."""

    initialise: bytes = b""
    update: bytes = b""
    refused: str = ""
    unreadable: str = ""


class Gone(Exception):
    """The other process has ended, or what it says is too long to be true."""


def send(connection: socket.socket, data: bytes) -> None:
    """Sends one record."""
    try:
        connection.sendall(_LENGTH.pack(len(data)))
        connection.sendall(data)
    except TimeoutError:
        raise
    except OSError as exc:
        raise Gone(str(exc)) from exc


def receive(connection: socket.socket, most: int, left_s: Callable[[], float | None]) -> bytes:
    """Receives one record of at most so many bytes.

    Raises:
      TimeoutError: `left_s` has become 0.
      Gone: see there.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, left_s))
    if length > most:
        raise Gone(f"{length} bytes")
    return bytes(_exactly(connection, length, left_s))


def _exactly(connection: socket.socket, length: int, left_s: Callable[[], float | None]) -> bytearray:
    data = bytearray()
    while len(data) < length:
        left = left_s()
        if left is not None and left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        try:
            part = connection.recv(min(length - len(data), 1 << 20))
        except TimeoutError:
            raise
        except OSError as exc:
            raise Gone(str(exc)) from exc
        if not part:
            raise Gone("")
        data += part
    return data
