"""JointSaving: a checkpoint that one process writes, of what several computed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from trainband.ps.checkpointing import LUGGAGE_S, SavedParts
from trainband.strategies.local_saving import LocalSaving
from trainband.strategies.luggage import Luggage
from trainband.strategies.together import Together


class JointSaving(LocalSaving):
    """See `LocalSaving`; with the luggage of the other processes."""

    def __init__(self, directory: Path, at: int, together: Together) -> None:
        super().__init__(directory, at)
        self._together = together
        self._written_at: float | None = None

    def poll(self) -> SavedParts | None:
        """See `Saving.poll`."""
        saved = super().poll()
        if saved is None:
            return None
        if not Luggage.from_bytes(saved.luggage[0], "itself").position:
            return saved  # no place in the data is known, of nobody
        now = time.monotonic()
        self._written_at = self._written_at or now
        luggage, missing = dict(saved.luggage), []
        for index in range(1, self._together.count):
            word = self._together.look(f"luggage/{saved.global_step}/{index}")
            if word is None:
                missing.append(self._together.name(index))
            else:
                luggage[index] = bytes.fromhex(word)
        if missing and now - self._written_at < LUGGAGE_S:
            return None
        self._together.forget_before("luggage", saved.global_step)  # of this step there may be another, at the end
        return replace(saved, luggage=luggage, missing=tuple(missing))
