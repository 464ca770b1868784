"""Looks at a page as browsers do: takes its stream of events, as often as it is told to at the same time.

`python -m bench.tasks.page_viewers HOST:PORT FILE`: FILE holds how many look, and may be rewritten.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

POLL_S = 0.1


async def view(host: str, port: int) -> None:
    """Reads the stream of one viewer until it is cancelled."""
    while True:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n".encode())
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()


async def run(address: str, wanted: Path) -> None:
    """Keeps as many viewers as the file says."""
    host, _, port = address.rpartition(":")
    viewers: list[asyncio.Task[None]] = []
    while True:
        count = int(wanted.read_text() or 0)
        while len(viewers) < count:
            viewers.append(asyncio.create_task(view(host, int(port))))
        while len(viewers) > count:
            viewers.pop().cancel()
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    os.nice(19)  # a browser runs on another machine: here it gets what the job leaves
    with suppress(KeyboardInterrupt):
        asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
