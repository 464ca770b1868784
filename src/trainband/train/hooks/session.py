"""The session as hooks see it, as small protocols for different hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainband.checkpoint import CheckpointDirectory
from trainband.model.variables import PyTree
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.strategies.base import Progress, StepReport
from trainband.train.result import Evaluation

if TYPE_CHECKING:
    from trainband.train.tensorboard_file import EventFile


class Session(Protocol):
    """The part that every hook may use; `MonitoredSession` documents each member."""

    @property
    def task(self) -> str: ...

    @property
    def is_chief(self) -> bool: ...

    @property
    def global_step(self) -> int: ...

    @property
    def checkpoint_dir(self) -> Path | None: ...

    def say(self, text: str, /) -> None: ...

    def progress(self) -> Progress | None: ...

    def events(self, directory: str | Path | None = None) -> EventFile: ...

    def should_stop(self) -> bool: ...

    def request_stop(self, reason: str = "") -> None: ...


class RecordedSession(Session, Protocol):
    """The part for hooks that record steps."""

    @property
    def job(self) -> str: ...

    def record_steps(self, steps: int, /) -> StepRecorder | None: ...

    def recording(self, recorder: StepRecorder, /) -> StepRecording: ...


class SavingSession(Session, Protocol):
    """The part for hooks that save."""

    @property
    def saving(self) -> bool: ...

    def save(self, *, at: int | None = None, wait: bool = False) -> None: ...


class EndingSession(SavingSession, Protocol):
    """The part that ends a session."""

    def run(self, batch: PyTree, /) -> StepReport: ...


class EvaluatingSession(Session, Protocol):
    """The part for hooks that evaluate."""

    @property
    def in_parts(self) -> bool: ...

    @property
    def directory(self) -> CheckpointDirectory | None: ...

    @property
    def evaluates_as_it_trains(self) -> bool: ...

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation: ...

    def settle(self) -> int: ...

    def record_validation(self, metrics: Mapping[str, float], best: str = "") -> None: ...


class TrackedSession(Session, Protocol):
    """The part for a hook that reports to a tracker."""

    @property
    def strategy_name(self) -> str: ...

    @property
    def validation(self) -> tuple[int, Mapping[str, float]] | None: ...
