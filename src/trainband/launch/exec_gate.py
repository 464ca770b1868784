"""Run as a script: waits until the launcher opens the gate, then becomes the task.

`python -I -S gate.py PROGRAM ARGUMENT...`

A launcher that is killed with SIGKILL between starting a task and telling the warden of it would leave
the task behind. So a task starts here, where it does nothing before the launcher, having told the
warden, writes one byte to its standard input; when the launcher dies instead, the pipe ends and so do
we. It costs one start of a bare Python, 12 ms.

This file imports nothing of trainband, because nothing else must be loaded before the task itself.
"""

from __future__ import annotations

import os
import sys

OPEN = b"1"


def main() -> None:
    """Waits for the byte, replaces standard input with nothing and executes the program."""
    if os.read(0, 1) != OPEN:
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if os.nice(0) > 0:
        _make_session_nice()
    os.execv(sys.argv[1], sys.argv[1:])


def _make_session_nice() -> None:
    """As nice as the launcher: where the kernel makes each session a group, it weighs groups and not processes."""
    import contextlib  # here, because few need it and it takes a third of our time to start

    with contextlib.suppress(OSError):  # not this kernel
        weight = os.open("/proc/self/autogroup", os.O_WRONLY)
        try:
            os.write(weight, str(os.nice(0)).encode())
        finally:
            os.close(weight)


if __name__ == "__main__":
    main()
