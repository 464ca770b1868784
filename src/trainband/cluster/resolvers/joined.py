"""How tasks report to a launcher on the same machine whether the program uses the cluster at all, and where the history
of its training is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "TRAINBAND_JOINED"
"""The environment variable with the path of the file that the first task to take part creates."""

PAGE = "TRAINBAND_PAGE"
"""The environment variable that is not empty if the launcher shows a page of the history."""

_HISTORY = "history_of"
"""The file, beside the other, with the path of the history's directory."""


def report_joined() -> None:
    """Tells the launcher, if there is one, that this task takes part in the job."""
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(OSError):  # then the launcher only knows less
            Path(path).touch()


def page_directory() -> Path | None:
    """Returns where to keep the page's history if the training has no directory; `None` without a page."""
    path = os.environ.get(VARIABLE)
    return Path(path).parent if path and os.environ.get(PAGE) else None


def report_history(page: Path, directory: Path) -> None:
    """Tells the launcher which directory has the history.

    Args:
      page: see `page_directory`.
      directory: the `checkpoint_dir` of the training, or `page` itself.

    Raises:
      OSError: it could not be written.
    """
    new = page / f"{_HISTORY}.{os.getpid()}"
    new.write_text(str(directory), encoding="utf-8", errors="surrogateescape")
    new.replace(page / _HISTORY)


def reported_history(page: Path) -> Path | None:
    """Returns the directory from `report_history`; `None` before it was called."""
    try:
        return Path((page / _HISTORY).read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return None
