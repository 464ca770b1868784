"""Runs a command and stops its processes for moments, as a machine does that has too much to do.

`python -m tests.stalls -- make test` shows which tests rely on how fast something is done. A test that stops a process
itself may find it running again: look at such a failure twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time

import psutil

EVERY_S = 0.5
"""Mean time between two stalls."""
SHORTEST_S, LONGEST_S = 0.1, 2.0


def stall(process: psutil.Process, seconds: float) -> None:
    """Stops a process for so long. One that is stopped already, or has ended, is left alone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)


def main(command: list[str]) -> int:
    """Runs a command with stalls. Returns its exit code."""
    dice = random.Random()
    running = subprocess.Popen(command)
    everything = psutil.Process(running.pid)
    ours, stalls = {os.getpid(), running.pid}, 0
    while running.poll() is None:
        time.sleep(dice.expovariate(1 / EVERY_S))
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [process for process in everything.children(recursive=True) if process.pid not in ours]
            if found:
                seconds = dice.uniform(SHORTEST_S, LONGEST_S)
                threading.Thread(target=stall, args=(dice.choice(found), seconds), daemon=True).start()
                stalls += 1
    print(f"{stalls} stalls of {SHORTEST_S:g} to {LONGEST_S:g} s")
    return running.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
