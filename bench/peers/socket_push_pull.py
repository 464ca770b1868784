"""Push, SGD and pull over a plain TCP connection: the floor that `bench.push_pull` compares with.

Both ends receive into memory that they have already and send from memory as it lies, one direction after the other, as
a training step does. The update is NumPy's, in pieces that stay in the cache: p -= r * g in one pass over the memory.

It keeps the contract of `bench.push_pull`.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEARNING_RATE = np.float32(0.01)
PIECE = 1 << 16  # float32, 256 kB each of params, gradient and product: within a core's second-level cache
BUFFER_BYTES = 4 << 20
TIMEOUT_S = 60.0


def main() -> None:
    """Run the role that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["ps", "worker"], required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--millions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    host, _, port = flags.address.rpartition(":")
    values = flags.millions * 1_000_000
    if flags.role == "ps":
        serve((host, int(port)), values)
    else:
        print(json.dumps({"seconds": work((host, int(port)), values, flags.rounds)}), flush=True)


def serve(address: tuple[str, int], values: int) -> None:
    """Play the ps for one worker, until that hangs up."""
    params = np.ones(values, np.float32)
    gradient = np.zeros(values, np.float32)
    product = np.empty(PIECE, np.float32)
    with socket.create_server(address) as server:
        connection, _ = server.accept()
    with connection:
        tune(connection)
        while receive(connection, gradient):
            for start in range(0, values, PIECE):
                piece = gradient[start : start + PIECE]
                params[start : start + PIECE] -= np.multiply(piece, LEARNING_RATE, out=product[: len(piece)])
            connection.sendall(params.data.cast("B"))


def work(address: tuple[str, int], values: int, rounds: int) -> list[float]:
    """Play the worker: push, wait, pull; give each round's seconds."""
    gradient = np.ones(values, np.float32)
    params = np.zeros(values, np.float32)
    seconds = []
    with connect(address) as connection:
        tune(connection)
        for number in range(rounds):
            begin = time.perf_counter()
            connection.sendall(gradient.data.cast("B"))
            receive(connection, params)
            seconds.append(time.perf_counter() - begin)
            wanted = 1 - (number + 1) * float(LEARNING_RATE)
            if not np.allclose(params[[0, -1]], wanted, atol=1e-4):
                raise SystemExit(f"The params are {params[[0, -1]]}, wanted {wanted}.")
    return seconds


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to the ps as soon as it listens."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(address, TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def tune(connection: socket.socket) -> None:
    """Set what matters for large messages."""
    connection.settimeout(None)  # with a timeout, Python polls before every system call
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def receive(connection: socket.socket, into: NDArray[Any]) -> bool:
    """Fill an array; False if the other end has hung up before the first byte."""
    view = into.data.cast("B")
    done = 0
    while done < len(view):
        count = connection.recv_into(view[done:], 0, socket.MSG_WAITALL)
        if count == 0:
            if done:
                raise SystemExit("The other end hung up within a message.")
            return False
        done += count
    return True


if __name__ == "__main__":
    main()
