"""Recorder: writes the history of a training run, from its own thread, while the training runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trainband.job.reports import Progress
from trainband.monitor.history.curves import spacing
from trainband.monitor.history.file import HistoryFile
from trainband.monitor.history.read import newest_start
from trainband.monitor.history.rows import HistoryRows, TrainingStart
from trainband.monitor.history.schema import FOLDER, next_start
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting

LOOK_S = 1.0
"""Seconds between two looks at the job, while its run is young."""

SELDOM_S = 5.0
"""Seconds between them when it is old."""

_POLL_S = 0.05
_CLOSE_S = 60.0


class Recorder:
    """Keeps the history of one training run: on the chief, while it has the chief's duties.

    The training passes its reports to `rows`. The thread asks the job for its state, and writes. A disk error does not
    stop the training: it is reported once, and the history ends there.

    Args:
      source: the state of the job; `None` if it is unknown just now. Called from the thread.
      say: prints lines for people.
      runtime: this task's.
      wall: seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        source: Callable[[], Progress | None],
        say: Say,
        start: TrainingStart,
        *,
        runtime: Runtime = SYSTEM,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.rows = HistoryRows(start, wall)
        self._folder = directory / FOLDER
        self._source = source
        self._say = say
        self._start = start
        self._runtime = runtime
        self._wall = wall
        self._age_at_start = 0.0
        self._started_s = runtime.clock()
        self._stop = runtime.event()
        self._reason: str | None = None
        self._thread = runtime.thread(self._run, "trainband-history")
        self._thread.start()

    def close(self, reason: str | None = None) -> None:
        """Writes the rest, and the end of the training if a reason is given. Idempotent."""
        if self._stop.is_set():
            return
        self._reason = reason
        self._stop.set()
        waiting = Waiting(_CLOSE_S, self._say, self._runtime.clock)
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
            if self._thread.is_alive() and waiting.waited_s > _CLOSE_S:
                self._say(f"WARNING: {self._folder} could not be written in time; the end of the history is lost")
                return
            waiting.check(f"the history to be written into {self._folder}", "")

    def _run(self) -> None:
        file = None
        try:
            file = self._open()
            file.append(self.rows.pop_due(self._age()))
            while not self._stop.wait(self._pause()):
                progress = self._source()
                if progress is not None and not self._stop.is_set():
                    self.rows.add_sample(progress, self._runtime.clock())
                file.append(self.rows.pop_due(self._age()))
            file.append(self.rows.end(self._age(), self._reason))
        except OSError as exc:
            self._say(
                f"WARNING: could not write a history to {self._folder} ({exc.strerror or exc}); training continues "
                "without it. Free space, or give this user write access, and start again."
            )
        finally:
            if file is not None:
                self._close_file(file)

    def _close_file(self, file: HistoryFile) -> None:
        try:
            file.close()
        except OSError as exc:  # reported before
            self._say(f"could not close {file.path}: {exc.strerror or exc}")

    def _open(self) -> HistoryFile:
        start = self._start
        first = next_start(
            newest_start(self._folder),
            token=self._runtime.token(),
            job=start.job,
            task=start.task,
            now=self._wall(),
            global_step=start.global_step,
            resumed=start.resumed,
            strategy=start.strategy,
        )
        self._age_at_start = max(0.0, first.started_at - first.run_began_at)
        return HistoryFile(self._folder, first)

    def _age(self) -> float:
        return self._age_at_start + self._runtime.clock() - self._started_s

    def _pause(self) -> float:
        # A little longer than the spacing, which grows meanwhile.
        return min(max(LOOK_S, 1.001 * spacing(self._age())), SELDOM_S)
