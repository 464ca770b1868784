"""ProgramSource: a program that is at hand, which stays as it is until somebody swaps its weights."""

from __future__ import annotations

import threading

from trainband.model.inference import InferenceProgram
from trainband.serve.model import ServedModel
from trainband.serve.sources.base import OnVersion, SourceState, SourceStatus


class ProgramSource:
    """One program.

    Args:
      program: which.
    """

    def __init__(self, program: InferenceProgram) -> None:
        self._program = program
        self.status = SourceStatus(SourceState.FIXED, f"{program.source or program.name} is one version.")

    def open(self, name: str = "") -> ServedModel:
        """See `VersionSource`."""
        return ServedModel.of(self._program, name)

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """See `VersionSource`: no other version comes."""
