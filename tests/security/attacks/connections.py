"""Connections and streams that take room and say nothing, or that come from somebody else's address."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from tests.security.attacks.calls import QUICK, call, wrong_proof
from tests.security.attacks.relay import Relay
from trainband.wire.flight import FlightConnection
from trainband.wire.messages.codec import encode
from trainband.wire.security import handshake

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


FLOOD_S = 5.0


def greetings(address: str) -> str:
    """Greets and proves what is wrong, thousands of times, and then looks whether a greeting is still answered."""
    until = time.monotonic() + FLOOD_S
    prove = wrong_proof()
    said = ((handshake.PROVE, encode(prove)), (handshake.HELLO, encode(prove.hello)))
    options = flight.FlightCallOptions(timeout=3.0)

    def flood() -> None:
        while time.monotonic() < until:
            with flight.connect(f"grpc://{address}") as client, contextlib.suppress(flight.FlightUnavailableError):
                for action, body in said * 50:  # until it is cut off
                    with contextlib.suppress(flight.FlightServerError):
                        list(client.do_action(flight.Action(action, body), options))

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with flight.connect(f"grpc://{address}") as client:
        try:
            list(client.do_action(flight.Action(handshake.HELLO, encode(prove.hello)), options))
        except flight.FlightError as exc:
            return f"nobody gets in: {str(exc)[:100]}"
    return ""


def _former_ports(port: int) -> set[int]:
    """From where the connections have come to a port that have ended, as any user of the machine can read."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, near, far, state, *_ = line.split()
                ends = [int(end.rpartition(":")[2], 16) for end in (near, far)]
                if state == "06" and port in ends:  # TIME_WAIT
                    found.add(ends[0] if ends[1] == port else ends[1])
    return found


def port_reuse(address: str) -> str:
    """Lists and reads from the port of somebody who has proved himself, once he has gone."""
    options = flight.FlightCallOptions(timeout=3.0)
    achieved: list[str] = []
    for port in sorted(_former_ports(_reaches(address)[1]))[-8:]:
        with (
            contextlib.suppress(flight.FlightError, pa.ArrowException, OSError),
            Relay(address, port) as relay,
            flight.connect(f"grpc://{relay.address}") as client,
        ):
            for info in client.list_flights(options=options):
                name = info.descriptor.path[0]
                client.do_get(flight.Ticket(name), options).read_all()
                achieved.append(name.decode())
    return f"read {', '.join(sorted(set(achieved)))}" if achieved else ""
