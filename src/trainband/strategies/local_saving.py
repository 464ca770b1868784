"""A checkpoint that one process writes alone, in a thread beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from trainband.checkpoint import Part, write_part
from trainband.ps.checkpointing import SavedParts
from trainband.ps.contents import Contents
from trainband.ps.variables import PyTree

FILE = "part-00000-of-00001.safetensors"


class LocalSaving:
    """See `Saving`. `luggage` is set by the replica, once the values have been taken."""

    def __init__(self, directory: Path, at: int) -> None:
        self.at = at
        self.luggage: bytes | None = None
        self.begun_at: float | None = None
        self.step: int | None = None
        """The global step that its values are of; `None` before they are taken."""
        self._directory = directory
        self._sources: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None
        self._part: Part | None = None
        self._failure: Exception | None = None

    @property
    def begun(self) -> bool:
        """Whether the values have been taken."""
        return self._thread is not None

    def due(self, step: int) -> bool:
        """Whether its values are those after this global step, or earlier ones that nobody took."""
        return not self.begun and step >= self.at

    def begin(self, step: int, contents: Contents, values: PyTree, sources: Mapping[str, str]) -> None:
        """Writes these values, which nobody else uses, in the order of `contents`."""
        self._sources = sources
        self.step = step
        self.begun_at = time.monotonic()
        leaves = jax.tree.leaves(values)

        def write() -> None:
            try:
                arrays = [np.asarray(leaf) for leaf in leaves]
                pieces = [(piece, array) for (piece,), array in zip(contents, arrays, strict=True)]
                self._part = write_part(self._directory, FILE, ps=0, version=step, pieces=pieces)
            except Exception as exc:  # whatever it is, `poll` must tell of it
                self._failure = exc

        thread = threading.Thread(target=write, name="trainband-save", daemon=True)
        thread.start()
        self._thread = thread

    def waits(self) -> bool:
        """See `Saving.waits`."""
        return self._thread is None

    def poll(self) -> SavedParts | None:
        """See `Saving.poll`."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        if self._part is None or self.luggage is None:
            return None
        return SavedParts((self._part,), {0: self.luggage}, self._sources)
