"""Saved weights: a model's tensors, by name, from a checkpoint or the newest one in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.checkpoint.reader import PARAMS_PREFIXES
from trainband.errors import CheckpointError
from trainband.runtime.waiting import Say, say_on_stderr


def newest_checkpoint(path: Path, say: Say = say_on_stderr) -> Checkpoint:
    """Returns a checkpoint, or the newest valid one in a directory.

    Raises:
      CheckpointError: there is none.
    """
    home = CheckpointDirectory(path, say)
    if home.steps():
        found = next(iter(home.candidates()), None)
        if found is None:
            raise CheckpointError(f"no checkpoint in {path} can be read.")
        return found
    return Checkpoint.open(path)


def weights_of(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """Returns the params and the model state, by name."""
    names = (name for name in checkpoint.manifest.tensors if f"{name}/".startswith(PARAMS_PREFIXES))
    return {name: checkpoint.read(name, prefer_ps=0) for name in names}
