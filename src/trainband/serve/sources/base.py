"""VersionSource: the seam for a served model's versions, from files or from a running job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trainband.serve.model import ServedModel


class OnVersion(Protocol):
    """Takes a new version; see `ServedModel.swap`. Raises `ModelMismatch` if it is of another model."""

    def __call__(
        self, weights: Mapping[str, Any], number: int, *, source: str = "", made_at: float | None = None
    ) -> object: ...


class SourceState(StrEnum):
    """State of a source."""

    FIXED = "fixed"
    """It has one version; no other will come."""
    FOLLOWING = "following"
    """New versions are served as they come."""
    ENDED = "ended"
    """The job has ended; its last version is served."""
    UNREACHABLE = "unreachable"
    """It cannot be asked for newer versions now; the last one is served."""
    FAILED = "failed"
    """It failed; its last version is served."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Status of a source, as in the server's health.

    Attributes:
      state: see `SourceState`.
      detail: a sentence for people; names the error, if any.
      since: when the state began, in seconds since 1970.
    """

    state: SourceState
    detail: str = ""
    since: float = field(default_factory=time.time)


class VersionSource(Protocol):
    """One kind of source. First `open` is called, then `run` in a separate thread."""

    @property
    def status(self) -> SourceStatus:
        """Its current status; thread-safe."""

    def open(self, name: str = "") -> ServedModel:
        """Returns the model with its first version. It may wait for one, and then prints that.

        Args:
          name: of the model; the function's when empty.

        Raises:
          TrainbandError: there is none.
        """

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """Delivers new versions until `stop` is set, or until there can be none.

        It logs and skips an unusable version. It raises an error that it cannot recover from: the server then reports
        it in its health, and keeps serving the last version.

        Args:
          on_version: called with each version.
          stop: set by another thread.
        """


Wait = Callable[[float], bool]
"""Waits this many seconds or until the stop, as `threading.Event.wait`; returns whether it is to stop."""
