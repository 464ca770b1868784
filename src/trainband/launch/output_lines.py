"""Splitting a task's output into lines."""

from __future__ import annotations

LONGEST_LINE = 64 * 1024
"""Bytes. A longer line is split, so that a task that never ends its line cannot fill the memory."""


class LineSplitter:
    """Takes bytes as they arrive and returns whole lines of text.

    UTF-8 is decoded line by line, so that a character split between two reads is decoded whole. Bytes that are not
    UTF-8 become the replacement character. Of a line overwritten with carriage returns, as progress bars do, only the
    last state is returned, as a terminal would show it.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that `data` completes, without their line ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            whole.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        return [_decode(line) for line in whole]

    def finish(self) -> list[str]:
        """Returns the last line if it had no line end."""
        rest, self._rest = self._rest, b""
        return [_decode(rest)] if rest else []


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
