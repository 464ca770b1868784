"""Run as a script: waits for the launcher's permission, then becomes the task.

`python -I -S exec_gate.py PROGRAM ARGUMENT...`

A launcher that is killed with SIGKILL after starting a task, but before registering it with the reaper, would leave the
task behind. So a task starts here and does nothing until the launcher, having registered it, writes one byte to its
standard input. If the launcher dies instead, the pipe closes and this process exits. The cost is one start of a bare
Python, 12 ms.

This file does not import trainband, because nothing may be loaded before the task itself.
"""

from __future__ import annotations

import os
import sys

OPEN = b"1"
OPEN_WITH_INPUT = b"2"
"""The program keeps the pipe as its standard input."""


def main() -> None:
    """Waits for the byte, replaces standard input with the null device and executes the program."""
    byte = os.read(0, 1)
    if byte not in (OPEN, OPEN_WITH_INPUT):
        sys.exit(1)
    if byte == OPEN:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    if os.nice(0) > 0:
        _make_session_nice()
    os.execvp(sys.argv[1], sys.argv[1:])


def _make_session_nice() -> None:
    """Sets the session's niceness to the launcher's: a kernel with autogroups schedules sessions, not processes."""
    import contextlib  # here, because it is rarely needed and takes a third of the startup time

    with contextlib.suppress(OSError):  # a kernel without autogroups
        weight = os.open("/proc/self/autogroup", os.O_WRONLY)
        try:
            os.write(weight, str(os.nice(0)).encode())
        finally:
            os.close(weight)


if __name__ == "__main__":
    main()
