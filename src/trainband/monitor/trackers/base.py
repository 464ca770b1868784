"""What a tracker is: the seam between a training and a service or library that keeps experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """Keeps one run: `start` once, then `log` now and then, then `add_artifact`, then `finish`.

    `TrackerHook` calls these on the chief, one after the other. Whatever `start` raises ends the training; what the
    others raise is said, and the training goes on without the tracker.
    """

    def start(self, config: Mapping[str, object]) -> None:
        """Begins the run, with what it was configured with: numbers, texts and truth values by their names."""

    def log(self, metrics: Mapping[str, float], global_step: int) -> None:
        """Notes metrics by their names. Global steps do not fall, unless a ps has lost updates."""

    def add_artifact(self, path: Path) -> None:
        """Keeps a file, or a directory with all that is in it."""

    def finish(self, *, failed: bool) -> None:
        """Ends the run: everything is kept when this returns. `failed`: the training has ended with an error."""
