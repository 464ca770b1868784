"""Retention: which checkpoints are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Which checkpoints are kept when a new one is committed.

    Attributes:
      keep: how many of the newest.
      every_hours: also keeps the oldest, then each first one at least this much later than the last kept this way;
        `None` keeps none of these.

    Raises:
      ValueError: `keep` is not at least 1, or `every_hours` is not a positive number.

    Source: TensorFlow's CheckpointManager, `max_to_keep` and `keep_checkpoint_every_n_hours`.
    """

    keep: int = 5
    every_hours: float | None = None

    def __post_init__(self) -> None:
        """Checks what the types cannot."""
        if self.keep < 1:
            raise ValueError(f"Retention.keep must be at least 1 checkpoint, got {self.keep}.")
        if self.every_hours is not None and not (math.isfinite(self.every_hours) and self.every_hours > 0):
            raise ValueError(f"Retention.every_hours must be a number of hours > 0 or None, got {self.every_hours}.")

    def kept(self, created_at: Mapping[int, float]) -> set[int]:
        """Returns the steps to keep.

        Args:
          created_at: creation time of each checkpoint, in seconds, by step.
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
