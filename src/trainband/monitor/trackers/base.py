"""Tracker: the seam between a training run and a service or library that keeps experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """Keeps one run: `start` once, then `log` repeatedly, then `add_artifact`, then `finish`.

    `TrackerHook` calls these on the chief, in sequence. An error from `start` ends the training; errors from the
    others are logged, and the training continues without the tracker.
    """

    def start(self, config: Mapping[str, object]) -> None:
        """Begins the run, with its configuration: numbers, strings and booleans by name."""

    def log(self, metrics: Mapping[str, float], global_step: int) -> None:
        """Logs metrics by name. Global steps do not decrease, unless a ps has lost updates."""

    def add_artifact(self, path: Path) -> None:
        """Uploads a file, or a directory with its contents."""

    def finish(self, *, failed: bool) -> None:
        """Ends the run; returns once everything is stored. `failed`: the training ended with an error."""
