"""Cutting what a task prints into lines."""

from __future__ import annotations

LONGEST_LINE = 64 * 1024
"""Bytes. A line that is longer comes in pieces, so that a task that never ends its line cannot fill our memory."""


class LineSplitter:
    """Takes bytes as they come and gives whole lines of text.

    UTF-8 is decoded a line at a time, so that a character cut in two by a read comes out whole; what is
    not UTF-8 comes out as the replacement character. Of a line that was overwritten with carriage
    returns, as progress bars do, the last state is given, as a terminal would show it.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            whole.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        return [_decode(line) for line in whole]

    def finish(self) -> list[str]:
        """The last line, where it had no end."""
        rest, self._rest = self._rest, b""
        return [_decode(rest)] if rest else []


def _decode(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
