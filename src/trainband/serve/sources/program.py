"""ProgramSource: a given program, fixed until the caller swaps its weights."""

from __future__ import annotations

import threading

from trainband.model.inference import InferenceProgram
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import OnVersion, SourceState, SourceStatus


class ProgramSource:
    """One program.

    Args:
      program: to serve.
    """

    def __init__(self, program: InferenceProgram) -> None:
        self._program = program
        self.status = SourceStatus(SourceState.FIXED, f"{program.source or program.name} is one version.")

    def open(self, name: str = "") -> ServedModel:
        return ServedModel.of(self._program, name)

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """Waits for the end: there are no other versions."""
