"""A program that sends a large frame to itself, and prints how long that took and how long it ever stood still."""

from __future__ import annotations

import json
import math
import sys
import threading
import time

import numpy as np
from tests.wire.serving import EchoHandler

from trainband.wire.network import Network
from trainband.wire.transport import Timeouts

EVERY_S = 0.02


def main(kind: str, mebibytes: int, stall_s: float) -> None:
    timeouts = Timeouts(stall_s=stall_s, heartbeat_s=0.2, connect_s=20.0, call_s=20.0)
    handler, network = EchoHandler(), Network(kind)
    listener = network.listen("127.0.0.1:0", handler, timeouts)
    connection = network.connect(listener.address, timeouts)
    stream = connection.open_stream(timeout_s=20.0)
    stream.send(b"small", [np.ones(1, np.uint8)])
    while stream.receive(1.0) is None:
        pass
    moved: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            moved.append(min(stream.moved_s, handler.streams[0].moved_s))

    watcher = threading.Thread(target=watch)
    begin = time.monotonic()
    watcher.start()
    stream.send(b"large", [np.full(mebibytes << 20, 7, np.uint8)])
    while (frame := stream.receive(1.0)) is None:
        pass
    took_s = time.monotonic() - begin
    over.set()
    watcher.join()
    whole = frame.body[0].size == mebibytes << 20 and bool((frame.body[0] == 7).all())
    known = [seconds for seconds in moved if seconds < math.inf]
    at_rest = [one.moved_s for one in (stream, *handler.streams)]
    answer = (whole, took_s, max(known), len(known) / len(moved), all(map(math.isinf, at_rest)))
    connection.close()
    listener.stop(2.0)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
