"""RemoteInput: what a launcher writes to a program on another machine, and that it is still there."""

from __future__ import annotations

import queue
import threading
from typing import IO

HEARTBEAT_S = 10.0
"""Between two empty lines, where there is nothing else to write."""
SILENT_S = 60.0
"""After so many seconds without a line, the other end takes the launcher for dead: a connection that a pulled cable has
cut says nothing."""


class RemoteInput:
    """Writes lines from a thread of its own, because the other end may not read for as long as a connection takes.

    Args:
      pipe: to the command that leads there.
      name: of the thread.
    """

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self._pipe = pipe
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=name, daemon=True)
        self._writer.start()

    def put(self, line: bytes) -> None:
        """Has a line, without its end, written."""
        self._lines.put(line + b"\n")

    def close(self) -> None:
        """Ends the thread, but for one that is in the middle of a line that nobody reads. Idempotent."""
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
            return  # the command has ended, or its pipe was closed: its exit tells
