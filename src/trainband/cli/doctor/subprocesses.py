"""Questions to other processes, none of which can hang the command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a process.

    Attributes:
      code: its exit code; `None` if it did not end in time.
    """

    code: int | None
    output: str = ""
    errors: str = ""

    @property
    def last_error(self) -> str:
        """The last line that it wrote on stderr."""
        lines = self.errors.strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


def ask(command: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Runs a program for at most `timeout_s` seconds.

    A process that hangs in a driver cannot even be killed, so nothing waits for its end.

    Args:
      environ: variables in addition to this process's own.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environ or {})},
        )
    except OSError as exc:
        return Answer(127, errors=str(exc))
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        return Answer(None)
    return Answer(process.returncode, output, errors)


def ask_python(program: str, timeout_s: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Runs a Python program with the same packages as this one."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return ask([sys.executable, "-c", program], timeout_s, {"PYTHONPATH": path, **(environ or {})})
