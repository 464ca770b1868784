"""VersionSource: the seam behind which a served model's versions come from files or from a running job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trainband.serve.model import ServedModel


class OnVersion(Protocol):
    """Takes a new version, see `ServedModel.swap`; raises `ModelMismatch` if it is of another model."""

    def __call__(
        self, weights: Mapping[str, Any], number: int, *, source: str = "", made_at: float | None = None
    ) -> object: ...


class SourceState(StrEnum):
    """What is to be expected of a source."""

    FIXED = "fixed"
    """It has one version, and no other will come."""
    FOLLOWING = "following"
    """New versions are served as they come."""
    ENDED = "ended"
    """The job has ended; its last version is served."""
    UNREACHABLE = "unreachable"
    """Nobody knows of newer versions at the moment; the last that came is served."""
    FAILED = "failed"
    """It gave up for an error; the last version that came is served."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What the health of a server says of its source.

    Attributes:
      state: see `SourceState`.
      detail: a sentence for people; what went wrong, if something did.
      since: when the state began, in seconds since 1970.
    """

    state: SourceState
    detail: str = ""
    since: float = field(default_factory=time.time)


class VersionSource(Protocol):
    """One kind of source. Used in this order: `open`, then `run` in a thread of its own."""

    @property
    def status(self) -> SourceStatus:
        """How it is; read by any thread."""

    def open(self, name: str = "") -> ServedModel:
        """The model with its first version. It may wait for one, and says so.

        Args:
          name: of the model; the function's when empty.

        Raises:
          TrainbandError: there is none.
        """

    def run(self, on_version: OnVersion, stop: threading.Event) -> None:
        """Hands over new versions until `stop` is set, or until there can be no more.

        A version that cannot be used is named and passed over. An error that it cannot go on after is raised: the
        server then says so in its health, and serves the last version on.

        Args:
          on_version: takes each of them.
          stop: set by another thread.
        """


Wait = Callable[[float], bool]
"""Waits so many seconds, or until it is to stop: whether it is, as `threading.Event.wait`."""
