"""RemoteInput: a launcher's messages and heartbeats to a program on another machine."""

from __future__ import annotations

import queue
import threading
from typing import IO

HEARTBEAT_S = 10.0
"""Between two empty lines if there is nothing else to write."""
SILENT_S = 60.0
"""After this many seconds without a line, the other end considers the launcher dead: a pulled cable closes no
connection."""


class RemoteInput:
    """Writes lines from its own thread, because the other end may not read until the connection is up."""

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self._pipe = pipe
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=name, daemon=True)
        self._writer.start()

    def send_line(self, line: bytes) -> None:
        """Queues a line, given without its line end."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Ends the thread unless it is blocked on a line that is not read. Idempotent."""
        self._lines.put(None)
        self._writer.join(1.0)

    def _write(self) -> None:
        try:
            while True:
                try:
                    line = self._lines.get(timeout=HEARTBEAT_S)
                except queue.Empty:
                    line = b"\n"
                if line is None:
                    return
                self._pipe.write(line)
                self._pipe.flush()
        except (OSError, ValueError):
            return  # the command has ended or closed its pipe; its exit tells
