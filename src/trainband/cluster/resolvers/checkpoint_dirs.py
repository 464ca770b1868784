"""The directories in which a ps may read and write checkpoints, from `TRAINBAND_CHECKPOINT_DIR`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TRAINBAND_CHECKPOINT_DIR"
"""The environment variable; several directories are separated as in `PATH`."""


def checkpoint_dirs(environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The directories that the environment names; the current one and that of temporary files where it names none.

    A process whose current directory is the root of the file system, as in many containers, has that of temporary
    files alone.

    Args:
      environ: the environment to look in; `os.environ` when `None`.

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
