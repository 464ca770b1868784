"""The records that a ps and its checker exchange, one at a time, over a pair of sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from msgspec import Struct

from trainband.ps.program.limits import ProgramLimits
from trainband.ps.program.signature import Signature

_LENGTH = struct.Struct("<Q")


class FunctionQuestion(Struct, frozen=True, tag=True):
    """A single function to check, of any arrays."""

    data: bytes
    platform: str
    """Where a closure runs; empty for an update."""
    limits: ProgramLimits
    nbytes: int
    """Bytes of the variables that an update may take."""
    time_s: float


class Question(Struct, frozen=True, tag=True):
    """An update program to check, with its shard's signature."""

    initialise: bytes
    update: bytes
    jax: str
    signature: Signature
    trained: tuple[bool, ...]
    limits: ProgramLimits
    time_s: float
    x64: bool
    """Whether the ps's JAX computes with 64 bits."""

    @property
    def nbytes(self) -> int:
        """Bytes of the shard."""
        return self.signature.nbytes


class Verdict(Struct, frozen=True):
    """The functions of a program, rewritten by the checker, or why there are none."""

    functions: tuple[bytes, ...] = ()
    update_s: float | None = None
    """Seconds of the checker's update; `None` if it made none."""
    refused: str = ""
    unreadable: str = ""


class Gone(Exception):
    """The other process has ended, or sends an implausibly long record."""


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
    """Receives one record of at most `most` bytes.

    Raises:
      TimeoutError: `left_s` has reached 0.
      Gone: the other process has ended, or the record is too long.
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
