"""CheckpointSource: the newest checkpoint of a directory, and each newer one as it appears."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from trainband.checkpoint import Checkpoint, CheckpointDirectory
from trainband.errors import CheckpointError, ModelError
from trainband.export.source import newest_checkpoint, weights_of
from trainband.model.predictor import Predictor
from trainband.runtime.waiting import Say, say_on_stderr
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import OnVersion, SourceState, SourceStatus

POLL_S = 0.5
"""Seconds between two reads of the directory."""


class CheckpointSource:
    """A directory of checkpoints, which a job may still be writing to; or a single checkpoint, which is fixed.

    A damaged checkpoint, or one of another model, is logged once and skipped.

    Args:
      path: the directory.
      predictor: the function to serve.
      tracing: `example`, `inputs` and `batch`, as for `Predictor.program`.
      say: prints lines for the user.
      poll_s: seconds between two reads of the directory.
    """

    def __init__(
        self,
        path: str | Path,
        predictor: Predictor,
        *,
        tracing: dict[str, Any] | None = None,
        say: Say = say_on_stderr,
        poll_s: float = POLL_S,
    ) -> None:
        self._path = Path(path)
        self._predictor = predictor
        self._tracing = tracing or {}
        self._say = say
        self._poll_s = poll_s
        self._directory = CheckpointDirectory(self._path, say)
        self._last = -1
        self.status = SourceStatus(SourceState.FOLLOWING, f"New checkpoints in {self._path} are served as they land.")

    def open(self, name: str = "") -> ServedModel:
        seen = max(self._directory.steps(), default=None)
        checkpoint = newest_checkpoint(self._path, self._say)
        if seen is None:
            self.status = SourceStatus(SourceState.FIXED, f"{self._path} is one checkpoint.")
        else:
            self._last = max(seen, checkpoint.global_step)
        program = self._predictor.program(
            weights_of(checkpoint), source=str(checkpoint.path), global_step=checkpoint.global_step, **self._tracing
        )
        return ServedModel.of(program, name, made_at=checkpoint.manifest.created_at)

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        while self.status.state is not SourceState.FIXED and not stop.wait(self._poll_s):
            self.poll(on_version)

    def poll(self, on_version: OnVersion) -> None:
        """Reads the directory once, and delivers the newest checkpoint committed since the last time."""
        try:
            fresh = [step for step in self._directory.steps() if step > self._last]
        except CheckpointError as exc:
            if self.status.state is not SourceState.UNREACHABLE:
                self._say(f"cannot look for newer checkpoints: {exc}")
                self.status = SourceStatus(SourceState.UNREACHABLE, str(exc))
            return
        if self.status.state is SourceState.UNREACHABLE:
            self.status = SourceStatus(SourceState.FOLLOWING, f"{self._path} can be read again.")
        if not fresh:
            return
        self._last = fresh[-1]
        for step in reversed(fresh):  # the newest intact one
            path = self._directory.path_of(step)
            try:
                checkpoint = Checkpoint.open(path)
                on_version(
                    weights_of(checkpoint),
                    checkpoint.global_step,
                    source=str(path),
                    made_at=checkpoint.manifest.created_at,
                )
            except (CheckpointError, ModelError) as exc:
                self._say(f"{path.name} is not served: {exc}")
                continue
            self._say(f"now serving global step {step:,}")
            return
