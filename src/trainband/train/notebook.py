"""NotebookPicture: a live picture of a training run below its notebook cell, without widgets or scripts."""

from __future__ import annotations

import sys
from typing import Any

from trainband.monitor import html
from trainband.runtime.formatting import rate
from trainband.strategies.base import Progress

MOST_POINTS = 2_000
"""The most points in the curve of the loss; beyond that, every second one is kept."""
MOST_WORKERS = 12


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: of IPython, which other programs have not imported."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookPicture:
    """The picture of a training run, replaced at each change. Made by the thread that runs the cell."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # notebooks have IPython

        self._html = HTML
        self._points: list[tuple[int, float]] = []
        self._handle: Any = display(
            HTML(html.block("trainband", html.table([("", "the job begins")]))), display_id=True
        )

    def show(self, progress: Progress, said: str) -> None:
        """Shows the progress of the training; any thread may call it.

        Args:
          progress: of the training.
          said: the same, as a line.
        """
        points = self._points
        if progress.loss is not None and (not points or progress.global_step > points[-1][0]):
            points.append((progress.global_step, progress.loss))
            if len(points) > MOST_POINTS:
                del points[1::2]
        self._handle.update(self._html(self._text(progress, said)))

    def _text(self, progress: Progress, said: str) -> str:
        parts = [html.table([("", said)])]
        if progress.last_step:
            share = min(1.0, progress.global_step / progress.last_step)
            parts.append(
                f'<progress max="1" value="{share:.4f}" style="width:{html.WIDTH}px;max-width:100%" '
                f'aria-label="global steps made">{share:.0%}</progress>'
            )
        parts.append(html.curve("loss", [x for x, _ in self._points], [y for _, y in self._points], log=True))
        rows = [
            (
                row.task,
                row.presence,
                rate(row.rate),
                f"{row.staleness:.1f}",
                "" if row.loss is None else f"{row.loss:.4f}",
            )
            for row in progress.workers[:MOST_WORKERS]
        ]
        if rows:
            parts.append(html.table(rows, ("worker", "", "steps/s", "staleness", "loss")))
        if len(progress.workers) > MOST_WORKERS:
            parts.append(html.table([("", f"and {len(progress.workers) - MOST_WORKERS:,} more workers")]))
        return html.block("trainband", *parts)
