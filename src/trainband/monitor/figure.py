"""Figures: plots for a file or a notebook."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trainband.errors import YourError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure() -> tuple[Figure, Axes]:
    """Returns a figure with one pair of axes, without a window or a backend.

    Raises:
      YourError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib")
        from matplotlib.figure import Figure  # 0.5 s, paid only if a picture is drawn
    except ImportError:
        raise YourError("a picture needs matplotlib, which is not installed: pip install 'trainband[plot]'.") from None

    class NotebookFigure(Figure):
        """A figure that IPython shows, with or without `%matplotlib inline`."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = NotebookFigure(figsize=(8, 4.5), dpi=120, layout="constrained")
    return figure, figure.subplots()


def finished(figure: Figure, axes: Axes, path: str | Path | None, *, log: bool) -> Figure | Path:
    """Adds a grid and saves the figure if `path` is given; returns the figure, or the path of its file."""
    if log:
        axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    if path is None:
        return figure
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
