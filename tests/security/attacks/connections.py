"""Connections and streams that take room and say nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pyarrow as pa
import pyarrow.flight as flight

from tests.security.attacks.calls import QUICK, call
from trainband.wire.flight import FlightConnection

MANY = 1500
HELD_S = 4.0


def _reaches(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def silence(address: str) -> str:
    """Very many connections, from one host, that stay."""
    held: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            for _ in range(MANY):
                held.append(stack.enter_context(socket.create_connection(_reaches(address), 2.0)))
        time.sleep(HELD_S)
        open_still = sum(map(_is_open, held))
        return f"held {open_still} connections" if open_still > 600 else ""


def _is_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(1 << 16):  # gRPC says something first
            continue
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def streams(address: str) -> str:
    """Very many streams that never say whose they are."""
    clients = [flight.connect(f"grpc://{address}") for _ in range(6)]
    opened = 0
    held = []
    for number in range(600):
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            options = flight.FlightCallOptions(timeout=30.0)
            exchange = clients[number % 6].do_exchange(
                flight.FlightDescriptor.for_command(b"trainband.stream"), options
            )
            held.append(exchange)
            exchange[0].begin(pa.schema([pa.field("body", pa.uint8(), nullable=False)]))
            opened += 1
    time.sleep(1.0)
    answered = 0
    for _, reader in held:
        with contextlib.suppress(flight.FlightError, pa.ArrowException, StopIteration):
            reader.read_chunk()  # the listener's greeting: the stream has reached a handler
            answered += 1
    for writer, _ in held:
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            writer.close()
    for client in clients:
        with contextlib.suppress(flight.FlightError, pa.ArrowException):
            client.close()
    return f"opened {answered} streams" if answered else ""


def noise(address: str) -> str:
    """Bytes that no HTTP/2 peer sends, and far too many."""
    taken = 0
    for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"):
        with contextlib.suppress(OSError), socket.create_connection(_reaches(address), 2.0) as one:
            one.settimeout(2.0)
            one.sendall(start)
            for _ in range(256):
                one.sendall(os.urandom(1 << 16))
                taken += 1 << 16
    connection = FlightConnection(address, QUICK)
    achieved = call(connection, "status")
    connection.close()
    return "status" if achieved else ""
