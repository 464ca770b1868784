"""Saving: a checkpoint that one process writes, in a thread beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from trainband.checkpoint import Part, write_part
from trainband.model.contents import Contents
from trainband.model.variables import PyTree
from trainband.model.worker_state import WorkerState
from trainband.ps.worker.checkpointing import WORKER_STATE_S, SavedParts
from trainband.spmd.process_group import Group

FILE = "part-00000-of-00001.safetensors"


class ChiefSaving:
    """A checkpoint of all values, which the chief writes; with the worker states of all processes.

    `worker_state` is set by the engine, once the values have been taken.
    """

    def __init__(self, directory: Path, at: int, group: Group) -> None:
        self.at = at
        self.worker_state: bytes | None = None
        self.begun_at: float | None = None
        """When its values were taken, by `time.monotonic`."""
        self.step: int | None = None
        """The global step that its values are of; `None` before they are taken."""
        self._directory = directory
        self._group = group
        self._sources: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None
        self._part: Part | None = None
        self._failure: Exception | None = None
        self._written_at: float | None = None

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
        """Whether its step has not come yet."""
        return self._thread is None

    def poll(self) -> SavedParts | None:
        """What was written, once all of it is; `None` before.

        Raises:
          CheckpointError: it could not be written.
        """
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        if self._part is None or self.worker_state is None:
            return None
        states, missing = {0: self.worker_state}, []
        if WorkerState.from_bytes(self.worker_state, "itself").position:  # else no place in the data is known
            self._written_at = self._written_at or time.monotonic()
            step = self._part.version
            for index in range(1, self._group.count):
                state = self._group.read(f"worker_state/{step}/{index}")
                if state is None:
                    missing.append(self._group.name(index))
                else:
                    states[index] = bytes.fromhex(state)
            if missing and time.monotonic() - self._written_at < WORKER_STATE_S:
                return None
            self._group.delete_before("worker_state", step)  # of this step there may be another, at the end
        return SavedParts((self._part,), states, self._sources, tuple(missing))
