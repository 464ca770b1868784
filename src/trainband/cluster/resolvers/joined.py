"""How a launcher hears whether the program that it has started uses the cluster at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "TRAINBAND_JOINED"
"""The environment variable with the path of the file that the first task to take part makes."""


def note_joined() -> None:
    """Tells the launcher, if there is one, that this task takes part in the job."""
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(OSError):  # the launcher only knows less then
            Path(path).touch()
