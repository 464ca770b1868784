"""The handler that the wire tests talk to, and a program that serves it in a process of its own."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.errors import ModelMismatch, Refused, StreamClosed
from trainband.wire.frame import Frame
from trainband.wire.transport import ANYBODY, Caller, Stream, Tensor, Timeouts


class EchoHandler:
    """Sends every frame back; some headers make it do something else.

    `quiet`: sends nothing back for this frame. `bye`: closes the stream. `fail`: raises one of our errors. `bug`:
    raises any other. `gate`: sends `entered` and waits for `finish`.
    """

    def __init__(self) -> None:
        self.variables: dict[str, NDArray[Any]] = {}
        self.finish = threading.Event()
        self.ended: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.seen: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.streams: list[Stream] = []
        self.address = "10.0.0.7:2222"

    def call(self, action: str, body: bytes, caller: Caller = ANYBODY) -> bytes:  # noqa: ARG002 - the seam has it
        match action:
            case "echo":
                return body
            case "refuse":
                raise Refused("no, because of X")
            case "mismatch":
                raise ModelMismatch("hidden/kernel differs: float32[3] here, float32[4] there " + "x" * len(body))
            case "bug":
                raise ZeroDivisionError("a secret of the server")
            case "wait":
                self.finish.wait(30.0)
                return b"done"
        raise Refused(f"unknown action {action!r}")

    def stream(self, stream: Stream, caller: Caller = ANYBODY) -> None:  # noqa: ARG002 - the seam has it
        self.streams.append(stream)
        try:
            while True:
                frame = stream.receive(0.05)
                if frame is None:
                    self.seen.put(None)
                    continue
                match frame.header:
                    case b"quiet":
                        self.seen.put(Frame(frame.header, tuple(array.copy() for array in frame.body)))
                    case b"bye":
                        stream.close()
                        return
                    case b"fail":
                        raise Refused("this worker's lease has run out")
                    case b"bug":
                        raise ZeroDivisionError("a secret of the server")
                    case b"gate":
                        stream.send(b"entered")
                        self.finish.wait(30.0)
                    case _:
                        stream.send(frame.header, frame.body)
        except StreamClosed as exc:
            self.ended.put(exc)
            raise
        finally:
            self.streams.remove(stream)

    def tensors(self) -> Sequence[Tensor]:
        return [
            Tensor(name, value.shape, str(value.dtype), ((0, value.shape[0] if value.shape else 1, self.address),))
            for name, value in self.variables.items()
        ]

    def read(self, name: str) -> tuple[int, NDArray[np.generic]]:
        if name not in self.variables:
            raise Refused(f"there is no variable {name!r} here.")
        return 0, self.variables[name]


def main(mode: str, address: str) -> None:
    """Serves at an address until its input ends, or is a client there that holds a stream."""
    from trainband.wire.flight import FlightTransport
    from trainband.wire.network import Network

    timeouts = Timeouts(heartbeat_s=0.1, stall_s=20.0)
    kind, _, role = mode.partition("/")
    transport = FlightTransport() if kind == "flight" else Network("ucx" if kind == "ucx" else "auto")
    if role == "serve":
        listener = transport.listen(address, EchoHandler(), timeouts)
        print(listener.address, flush=True)
        sys.stdin.read()
        listener.stop(1.0)
        return
    if role == "exit":  # a task that ends with a client's stream open, and does not stop its listener
        listener = transport.listen(address, EchoHandler(), timeouts)
        print(listener.address, flush=True)
        sys.stdin.readline()
        return
    if role == "stop":  # a task that stops, and ends, as its client stands still
        listener = transport.listen(address, EchoHandler(), timeouts)
        print(listener.address, flush=True)
        sys.stdin.readline()
        listener.stop(0.5)
        print("stopped", flush=True)
        return
    if role == "interrupt":  # a client that waits until somebody presses Ctrl-C
        stream = transport.connect(address, timeouts).open_stream(timeout_s=20.0)
        try:
            print("open", flush=True)
            while True:
                stream.receive(10.0)
        except KeyboardInterrupt:
            stream.close()
            print("interrupted", flush=True)
        return
    stream = transport.connect(address, timeouts).open_stream(timeout_s=10.0)
    if role == "burst":  # a client that sends two frames to a handler which does not read them, and waits for its end
        stream.send(b"gate")
        for value in (1.0, 2.0):
            stream.send(b"quiet", [np.full(50_000, value)])
        print("sent" if stream.outlives_sender else "lost", flush=True)
        sys.stdin.read()
        return
    stream.send(b"hello", [np.ones(1000, np.float32)])
    while stream.receive(10.0) is None:
        pass
    print("open", flush=True)
    while stream.receive(10.0) is None:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
