"""Checkpoints as engines and front ends exchange them: orders, saved parts, status, restore sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from trainband.checkpoint import Checkpoint, Part
from trainband.errors import Refused
from trainband.runtime.formatting import size

WORKER_STATE_S = 10.0
"""Seconds for which a checkpoint with all parts written waits for a worker's state. Then the worker's last known state
is saved instead, so that one slow worker cannot delay the commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRecord:
    """The part of a manifest that describes the training.

    Attributes:
      strategy: its name.
      trainings: the global steps at which the script's training runs began.
      complete: whether the training is over.
      last_step: the global step at which it was to end.
      used_up: whether it ended because its batches are used up.
      metrics: of a validation of these params.
      best: (metric, value) if this is the best checkpoint so far.
    """

    strategy: str
    trainings: tuple[int, ...]
    complete: bool = False
    last_step: int | None = None
    used_up: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: tuple[str, float] | None = None


class CheckpointStatus(Struct, frozen=True):
    """The last checkpoint that was committed."""

    global_step: int
    nbytes: int
    seconds: float
    """Seconds from the moment its step was reached until the commit."""

    def __str__(self) -> str:
        return f"checkpoint of global step {self.global_step:,}: {size(self.nbytes)} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The written parts of a checkpoint, with the rest of its manifest.

    Attributes:
      worker_state: of each worker, by number.
      sources: the shared data sources, as text.
      missing: workers whose state is older than the checkpoint.
    """

    parts: tuple[Part, ...]
    worker_state: Mapping[int, bytes] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def global_step(self) -> int:
        """The version of ps:0's part."""
        return self.parts[0].version


class Saving(Protocol):
    """A checkpoint that was ordered: poll it until all parts are written, then commit it."""

    @property
    def started_at(self) -> float | None:
        """When its step was reached, by `time.monotonic`, as precisely as is known."""
        ...

    @property
    def waits(self) -> bool:
        """Whether, at the last poll, a part was waiting for its step and nothing was being written."""
        ...

    def poll(self) -> SavedParts | None:
        """Returns the saved parts once all are written, `None` before. Called by one thread, not always the engine's.

        Raises:
          CheckpointError: a part could not be written.
          Overtaken: the order was lost before it was executed.
          PeerError: a ps cannot be reached.
        """
        ...

    def committed(self, status: CheckpointStatus) -> None:
        """Reports to the job that the checkpoint was committed.

        Raises:
          PeerError: a ps cannot be reached, or another task is the chief.
        """
        ...


class Overtaken(Refused):
    """Another task was faster, or the ps has died meanwhile: decide again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreFrom:
    """Where a job gets its initial values from, if anywhere.

    Attributes:
      candidates: checkpoints, the best first; iterating may report why one cannot be used.
      worker_state: of each worker in a checkpoint, by number.
      optimizer: whether the optimizer state is restored or starts from its initial values.
    """

    candidates: Callable[[], Iterable[Checkpoint]]
    worker_state: Callable[[Checkpoint], Mapping[int, bytes]]
    optimizer: bool = True
