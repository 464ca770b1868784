"""AllowedDirectories: the only places where a ps reads and writes checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainband.cluster.resolvers.checkpoint_dirs import VARIABLE
from trainband.errors import CheckpointError

MOST_PATH_CHARACTERS = 4096
"""Longest directory path that is looked up; no file system has longer ones."""

_SHOWN_CHARACTERS = 200


class AllowedDirectories:
    """The directories below which a ps may read and write checkpoints.

    Args:
      directories: they need not exist.
      task: the ps, for messages.
    """

    def __init__(self, directories: Sequence[str | os.PathLike[str]], task: str) -> None:
        self.directories = tuple(Path(directory).absolute() for directory in directories)
        """As given, made absolute."""
        self._task = task

    def admit(self, directory: str) -> Path:
        """The real path, free of symbolic links, of a directory that the chief has named.

        Raises:
          CheckpointError: it is not below an allowed one; the message is the same whether it exists or not.
        """
        try:
            if len(directory) <= MOST_PATH_CHARACTERS:
                real = Path(os.path.realpath(directory))
                if any(real.is_relative_to(os.path.realpath(allowed)) for allowed in self.directories):
                    return real
        except (OSError, ValueError):  # not a path, so not allowed
            pass
        shown = directory if len(directory) <= _SHOWN_CHARACTERS else f"{directory[: _SHOWN_CHARACTERS - 3]}..."
        allowed = " and ".join(map(str, self.directories)) or "no directory"
        raise CheckpointError(
            f"{self._task} reads and writes checkpoints only below {allowed}, and {shown!r} is not there; to allow it, "
            f"start that ps with {VARIABLE} set to it, or with Server(checkpoint_dir=...)."
        )
