"""Retention: which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Which checkpoints are kept when a new one has been committed.

    Attributes:
      keep: how many of the newest.
      every_hours: besides those, the oldest and then the first that is this much later than the one before it that
        is kept so; none without it.

    Raises:
      ValueError: `keep` is not at least 1, or `every_hours` is not a positive number.

    Source: TensorFlow's CheckpointManager, `max_to_keep` and `keep_checkpoint_every_n_hours`.
    """

    keep: int = 5
    every_hours: float | None = None

    def __post_init__(self) -> None:
        """Check what a type cannot say."""
        if self.keep < 1:
            raise ValueError(f"Retention.keep must be at least 1 checkpoint, got {self.keep}.")
        if self.every_hours is not None and not (math.isfinite(self.every_hours) and self.every_hours > 0):
            raise ValueError(f"Retention.every_hours must be a number of hours > 0 or None, got {self.every_hours}.")

    def kept(self, created_at: Mapping[int, float]) -> set[int]:
        """The steps that are kept.

        Args:
          created_at: when each checkpoint was made, in seconds, by its step.
        """
        steps = sorted(created_at)
        kept = set(steps[-self.keep :])
        if self.every_hours is not None:
            due = -math.inf
            for step in steps:
                if created_at[step] >= due:
                    kept.add(step)
                    due = created_at[step] + self.every_hours * 3600
        return kept
