"""The directories in which a ps may read and write checkpoints, from `TRAINBAND_CHECKPOINT_DIR`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TRAINBAND_CHECKPOINT_DIR"
"""The environment variable; several directories are separated as in `PATH`."""


def checkpoint_dirs(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Returns the directories that the environment names; by default the current and the temporary directory.

    A process whose current directory is the root of the file system, as in many containers, gets only the temporary
    directory.

    Args:
      environ: the environment to read; `os.environ` when `None`.

    Returns:
      absolute paths.
    """
    named = (os.environ if environ is None else environ).get(VARIABLE, "").split(os.pathsep)
    if given := tuple(Path(name).absolute() for name in named if name):
        return given
    found = [Path(tempfile.gettempdir()).absolute()]
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return tuple(found)
    return tuple(found) if here == Path(here.anchor) else (here, *found)
