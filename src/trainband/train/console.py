"""The console: a live picture of a training run on a terminal or in a notebook, otherwise a line from time to time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainband.job.statistics import RATE_WINDOW_S
from trainband.runtime.formatting import duration, printable, rate
from trainband.runtime.waiting import Say
from trainband.strategies.base import Progress
from trainband.train.notebook import NotebookPicture, in_notebook

LIVE_EVERY_S = 0.5
LINE_EVERY_S = 10.0
NOTEBOOK_EVERY_S = 1.0
"""The notebook's message history keeps each picture until the next replaces it."""


def picture(progress: Progress | None, began_at: int = 0) -> RenderableType:
    """Draws a training run with rich: a line with the job's figures, a bar, and one row for each worker.

    Args:
      progress: the job's progress; `None` while unknown.
      began_at: the global step at which it began: the speed is unknown before the second step.
    """
    if progress is None:
        return Text("waiting for the job to begin", style="dim")
    head = Text(line(progress, began_at))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "", "steps/s", "staleness", "loss"):
        table.add_column(title, justify="left" if title in ("worker", "") else "right")
    for row in progress.workers:
        style = "" if row.presence == "live" else "dim"
        loss = "" if row.loss is None else f"{row.loss:.4f}"
        table.add_row(
            Text(printable(row.task)),
            Text(printable(row.presence)),
            rate(row.rate),
            f"{row.staleness:.1f}",
            loss,
            style=style,
        )
    below: list[RenderableType] = [table]
    if progress.checkpoint is not None:
        below.append(Text(str(progress.checkpoint), style="dim"))
    if not progress.last_step:
        return Group(head, *below)
    bar = ProgressBar(total=progress.last_step, completed=progress.global_step, width=60)
    return Group(head, Padding(bar, 0), *below)  # a bare bar does not end its line


def line(progress: Progress, began_at: int = 0) -> str:
    """Describes a training run in one line: global step, steps/s, loss, time left."""
    of = f"/{progress.last_step:,}" if progress.last_step else ""
    parts = [f"global step {progress.global_step:,}{of}"]
    made = progress.global_step - began_at
    if not made and not progress.rate:
        parts.append("compiling the first step")
    elif made != 1 or progress.rate:
        parts.append(f"{rate(progress.rate)} steps/s")
    if progress.examples_rate:
        parts.append(f"{rate(progress.examples_rate)} examples/s")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.last_step and progress.rate > 0:
        parts.append(f"{duration((progress.last_step - progress.global_step) / progress.rate)} left")
    return ", ".join(parts)


class Console:
    """Shows the progress from `source` while it is open, in its own thread.

    Args:
      source: returns the job's progress; `None` when it is unknown.
      say: receives the lines when stderr is not a terminal and this is not a notebook.
    """

    def __init__(self, source: Callable[[], Progress | None], say: Say) -> None:
        self._source = source
        self._say = say
        self._began_at: int | None = None
        self._stop = threading.Event()
        self._console = RichConsole(stderr=True)
        self._notebook = NotebookPicture() if in_notebook() else None
        is_live = self._notebook is None and sys.stderr.isatty()
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if is_live else None
        self._thread = threading.Thread(target=self._show, name="trainband-console", daemon=True)

    def __enter__(self) -> Console:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._notebook is not None and (progress := self._source()) is not None:
            self._notebook.show(progress, line(progress, self._began_at or 0))  # the final state
        if self._live is not None:
            self._live.stop()

    def _show(self) -> None:
        spoken = time.monotonic()
        while not self._stop.wait(LIVE_EVERY_S if self._notebook is None else NOTEBOOK_EVERY_S):
            silent_s = time.monotonic() - spoken
            # A line's rate is the one between the last looks before it.
            is_due = silent_s >= LINE_EVERY_S - RATE_WINDOW_S
            if self._live is None and self._notebook is None and self._began_at is not None and not is_due:
                continue
            progress = self._source()
            if self._began_at is None and progress is not None:
                self._began_at = progress.global_step
            if self._live is not None:
                self._live.update(picture(progress, self._began_at or 0), refresh=True)
            elif self._notebook is not None:
                if progress is not None:
                    self._notebook.show(progress, line(progress, self._began_at or 0))
            elif progress is not None and silent_s >= LINE_EVERY_S:
                spoken = time.monotonic()
                self._say(line(progress, self._began_at or 0))
