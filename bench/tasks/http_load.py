"""An HTTP load: clients with a connection each that ask again as soon as they are answered.

Written to sockets and epoll, because a client library would take more of a machine's two cores than the server.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from pathlib import Path


def main() -> None:
    """Load a server; print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--body", type=Path, required=True, help="of every request")
    parser.add_argument("--header", action="append", default=[], help="further ones")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds that are not counted")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--until", type=Path, help="end when this file is there, or after --seconds at the latest")
    flags = parser.parse_args()
    body = flags.body.read_bytes()
    head = [f"POST {flags.path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *flags.header]
    if not any(header.lower().startswith("content-type") for header in flags.header):
        head.append("Content-Type: application/json")
    request = "\r\n".join([*head, "", ""]).encode() + body
    print(json.dumps(load(flags.port, request, flags.clients, flags.warm_up, flags.seconds, flags.until)))


def load(
    port: int, request: bytes, clients: int, warm_up: float, seconds: float, until: Path | None = None
) -> dict[str, object]:
    """Ask for so long, or until a file is there.

    Returns:
      requests per second, percentiles of their durations in milliseconds, how many failed and why, and the seconds of
      processor time that all this took.
    """
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    sent: dict[int, float] = {}
    pending: dict[int, bytes] = {}
    for _ in range(clients):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[one.fileno()] = one
        pending[one.fileno()] = b""
        poll.register(one, select.EPOLLIN)
    begin = time.perf_counter()
    start, end = begin + warm_up, begin + warm_up + seconds
    looked = begin
    for number, one in sockets.items():
        sent[number] = time.perf_counter()
        one.sendall(request)
    durations: list[float] = []
    failures: dict[str, int] = {}
    answered = 0
    while sent and time.perf_counter() < end + 10.0:
        if until is not None and time.perf_counter() > looked + 0.1:
            looked = time.perf_counter()
            if until.exists():
                end = min(end, looked)
        for number, _ in poll.poll(1.0):
            data = sockets[number].recv(1 << 18)
            text = pending[number] + data
            gap = text.find(b"\r\n\r\n")
            if data and (gap < 0 or len(text) < gap + 4 + _length(text[:gap])):
                pending[number] = text
                continue
            now = time.perf_counter()
            answered += 1
            if not data or not text.startswith(b"HTTP/1.1 200"):
                what = text[:200].decode(errors="replace") if data else "the connection was closed"
                failures[what] = failures.get(what, 0) + 1
            elif start <= now < end:
                durations.append(now - sent[number])
            del sent[number]
            if data and now < end:
                pending[number] = b""
                sent[number] = time.perf_counter()
                sockets[number].sendall(request)
            elif not data:
                poll.unregister(number)
    for one in sockets.values():
        one.close()
    durations.sort()
    if sent:
        failures["no answer"] = len(sent)
    return {
        "per_s": len(durations) / (end - start),
        "p50_ms": _percentile(durations, 0.5),
        "p99_ms": _percentile(durations, 0.99),
        "max_ms": _percentile(durations, 1.0),
        "answered": answered,
        "failures": failures,
        "cpu_s": time.process_time(),
    }


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def _percentile(ascending: list[float], share: float) -> float:
    return 1e3 * ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else float("nan")


if __name__ == "__main__":
    main()
