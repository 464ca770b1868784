"""Tasks in processes of their own, for what only a real process can show: death, standstill, exit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PROGRAM = Path(__file__).with_name("serving.py")


class Task:
    """One process that runs `serving.py`."""

    def __init__(self, mode: str, address: str = "127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(_PROGRAM), mode, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        """Gives it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def wait(self, deadline_s: float) -> tuple[int, str]:
        """Its exit status and all that it wrote on stderr."""
        _, errors = self.process.communicate(timeout=deadline_s)
        return self.process.returncode, errors


@contextlib.contextmanager
def task(mode: str, address: str = "127.0.0.1:0") -> Iterator[Task]:
    """Runs `serving.py` and makes sure that nothing of it is left."""
    running = Task(mode, address)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()
