"""`trainband status --watch`: redraws a job's status until the job ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from trainband.errors import PeerError
from trainband.job.statistics import PsStatus
from trainband.runtime import Clock
from trainband.runtime.formatting import printable

GONE_S = 10.0
"""Silence after which the ps counts as gone; a restarted one answers sooner."""
SLOW_S = 1.0
"""Seconds of slack when the step of a silent job is extrapolated from its last rate."""
_HOME, _TO_LINE_END, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    ask: Callable[[], PsStatus],
    show: Callable[[PsStatus, Console], None],
    console: Console,
    *,
    every_s: float,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Shows the status until the job ends, then leaves the last picture above a line that says so.

    Args:
      console: a terminal is redrawn; anything else gets one picture after another.
      every_s: seconds between two questions.

    Raises:
      PeerError: the first question got no answer.
    """
    status, answers, answered_at = ask(), True, clock()
    if console.is_terminal:
        console.clear()
    while True:
        silent_s = 0.0 if answers else clock() - answered_at
        gone = silent_s >= GONE_S or (silent_s > 0 and _is_complete(status, silent_s))
        if status.ended or gone:
            _draw(status, _end(status, silent_s), show, console, last=True)
            return
        waiting = f"waiting for {status.task} at {status.address} to answer ({silent_s:.0f} s)"
        _draw(status, Text(printable(waiting), style="yellow") if silent_s > 0 else None, show, console)
        sleep(every_s)
        try:
            status, answers, answered_at = ask(), True, clock()
        except PeerError:
            answers = False  # it may have been restarted, or the job has ended


def _is_complete(status: PsStatus, silent_s: float) -> bool:
    """Whether a job silent for `silent_s` has probably made all its updates by now."""
    reached = status.version + status.rate * max(0.0, silent_s - SLOW_S)
    return 0 < status.last_version <= reached


def _end(status: PsStatus, silent_s: float) -> Text:
    if status.ended or _is_complete(status, silent_s):
        return Text("the job has ended", style="bold")
    return Text(
        f"{printable(status.task)} has not answered for {silent_s:.0f} s: the job has ended, or this ps has died",
        style="bold",
    )


def _draw(
    status: PsStatus,
    note: Text | None,
    show: Callable[[PsStatus, Console], None],
    console: Console,
    *,
    last: bool = False,
) -> None:
    with console.capture() as capture:
        show(status, console)
        if note is not None:
            console.print(note)
    text = capture.get()
    if not console.is_terminal:
        console.file.write(f"{text}\n")
    else:
        lines = text.splitlines()
        if not last:
            lines = lines[: max(1, console.size.height - 1)]  # after scrolling, redrawing would miss
        console.file.write(_HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _BELOW)
    console.file.flush()
