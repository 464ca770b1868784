"""SlowUpdates: warns when an update program's updates take much longer than they should, and names its definer.

A check runs a program on zeros, or not at all if it needs much memory, but a program may do more work for other values.
`ProgramLimits.work` bounds that work; this reports it.
"""

from __future__ import annotations

from trainband.runtime import SYSTEM, Clock
from trainband.runtime.waiting import Say

TIMES = 5.0
"""An update that takes this many times as long as usual is slow."""
LEAST_S = 1.0
"""An update that takes less time than this is never slow."""
USUAL_S = 10.0
"""Usual seconds of an update of a program that no check has run, until one is quicker."""
AGAIN_S = 60.0
"""Seconds between two warnings."""


class SlowUpdates:
    """The slow updates of one program.

    Args:
      definer: the task that has defined it.
      checked_s: seconds of the update in its check; `None` if the check ran none.
      clock: monotonic seconds.
    """

    def __init__(self, definer: str, checked_s: float | None, say: Say, clock: Clock = SYSTEM.clock) -> None:
        self._definer = definer
        self._was_run = checked_s is not None
        self._usual_s = USUAL_S if checked_s is None else checked_s
        self._say = say
        self._clock = clock
        self._said_at: float | None = None

    def record(self, took_s: float) -> None:
        usual_s = self._usual_s
        if not self._was_run:
            self._usual_s = min(usual_s, took_s)
        if took_s < max(LEAST_S, TIMES * usual_s):
            return
        now = self._clock()
        if self._said_at is not None and now - self._said_at < AGAIN_S:
            return
        self._said_at = now
        compared = "in the check of its program" if self._was_run else "is usual"
        self._say(
            f"WARNING: an update took {took_s:.1f} s; {usual_s:.2g} s {compared}. "
            f"{self._definer} has defined the program: look for branches and loops in its optimizer that depend on "
            "values, and at the load of this machine. ProgramLimits(work=..., work_per_element=...) bounds an update."
        )
