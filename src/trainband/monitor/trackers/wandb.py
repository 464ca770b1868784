"""WandbTracker: a run in Weights & Biases, offline by default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainband.errors import YourError
from trainband.monitor.trackers.base import Tracker
from trainband.runtime.overrides import override


class WandbTracker(Tracker):
    """Keeps a run in Weights & Biases.

    Args:
      project: the name of the project.
      mode: `offline` writes files below `directory`, which `wandb sync` uploads later; `online` sends at once, with
        the account of `wandb login`.
      directory: for its files; the current directory by default.
      name: of the run; W&B makes one up by default.
      settings: further arguments of `wandb.init`, such as `tags` or `group`.

    Raises:
      YourError: wandb is not installed, or the mode is unknown.
    """

    def __init__(
        self,
        project: str = "trainband",
        *,
        mode: str = "offline",
        directory: str | Path | None = None,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("offline", "online"):
            raise YourError(f"WandbTracker: mode must be offline or online, got {mode!r}.")
        try:
            library = import_module("wandb")
        except ImportError:
            raise YourError("WandbTracker needs wandb, which is not installed: pip install wandb.") from None
        self._wandb: Any = library
        self._about = {
            "project": project,
            "mode": mode,
            "dir": None if directory is None else str(directory),
            "name": name,
            **(settings or {}),
        }
        self._run: Any = None

    @override
    def start(self, config: Mapping[str, object]) -> None:
        if self._about["dir"] is not None:
            Path(self._about["dir"]).mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(config=dict(config), **self._about)

    @override
    def log(self, metrics: Mapping[str, float], global_step: int) -> None:
        self._run.log(dict(metrics), step=global_step)

    @override
    def add_artifact(self, path: Path) -> None:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.name)[:120] or "files"
        artifact = self._wandb.Artifact(name, type="training")
        if path.is_dir():
            artifact.add_dir(str(path))
        else:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    @override
    def finish(self, *, failed: bool) -> None:
        self._run.finish(exit_code=1 if failed else 0)
