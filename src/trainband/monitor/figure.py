"""Figures: pictures that go into a file, or that a notebook shows."""

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
    """A figure with one pair of axes, which no window shows and no backend has to be chosen for.

    Raises:
      YourError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib")
        from matplotlib.figure import Figure  # 0.5 s, which only who wants a picture pays
    except ImportError:
        raise YourError("a picture needs matplotlib: pip install 'trainband[plot]'.") from None

    class NotebookFigure(Figure):
        """A figure that IPython shows, whether or not `%matplotlib inline` was asked for."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = NotebookFigure(figsize=(8, 4.5), dpi=120, layout="constrained")
    return figure, figure.subplots()


def finished(figure: Figure, axes: Axes, path: str | Path | None, *, log: bool) -> Figure | Path:
    """Gives the axes their grid, and the figure to its file: the figure, or the path of the file if there is one."""
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
