"""An engine's reports: of a step, and of the job for the display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainband.job.checkpoints import CheckpointStatus
from trainband.job.statistics import PsStatus
from trainband.wire.messages.calls import UNLIMITED

FINISHED = "the chief has ended the training"
USED_UP = "its batches are used up"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, for the display."""

    task: str
    presence: str
    rate: float
    """Steps per second."""
    staleness: float
    loss: float | None
    time: Mapping[str, float] = field(default_factory=dict)
    """Recent share of each part of a step in its time (`runtime.step_times.PARTS` and `other`); empty if unknown."""
    memory_bytes: int = 0
    """Of its process and those that it started; here and below, 0 if its platform does not report it."""
    device_memory_bytes: int = 0
    """Device memory in use, on all its devices together."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """The ps that a worker uses for one shard."""

    shard: int
    ps: str
    term: int
    """The term in which that ps owns it."""
    lineage: str
    """An id of its values, which changes when they are restored or initialised again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, for the display."""

    global_step: int
    last_step: int | None
    """Where this training ends; `None` while unknown."""
    rate: float
    """Global steps per second."""
    loss: float | None
    workers: tuple[WorkerRow, ...] = ()
    examples_rate: float = 0.0
    """Examples per second that become part of updates."""
    checkpoint: CheckpointStatus | None = None
    """The last committed one."""
    shards: tuple[ShardRow, ...] = ()
    learning_rate: float | None = None
    """That of the last update, if the ps know it."""


def progress_of(status: PsStatus) -> Progress:
    """Converts a ps's status for the display."""
    rows = tuple(
        WorkerRow(
            w.task,
            w.presence,
            w.rate,
            w.staleness,
            w.loss,
            w.time,
            memory_bytes=w.memory_bytes,
            device_memory_bytes=w.device_memory_bytes,
        )
        for w in status.workers
    )
    limited = 0 < status.last_version < UNLIMITED
    return Progress(
        status.version,
        status.last_version if limited else None,
        status.rate,
        status.loss,
        rows,
        status.examples_rate,
        status.checkpoint,
        learning_rate=status.learning_rate,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStatus:
    """The training that began last, as one task knows it.

    Attributes:
      starts: the global steps at which the script's training runs began in a job that is already under way; once this
        training has begun, on every worker, including this one.
      last_step: the global step at which it ends, as the chief reports; `None` without a limit.
      unused: how many of this task's last batches changed nothing, because another task had ended the training.
      refused: how many of this task's gradients were refused in it.
    """

    starts: tuple[int, ...] = ()
    last_step: int | None = None
    unused: int = 0
    refused: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatistics:
    """Progress of one training task, from its own knowledge: no other task is asked.

    Attributes:
      task: its name in the cluster, or `local`.
      is_chief: whether it has the chief's duties now.
      global_step: updates made by the whole job, as far as this task knows.
      last_step: where the current training ends; `None` if this task does not know it or there is no limit.
      steps: those of this task, including those before it resumed from a checkpoint.
      examples: of these steps in this process; `None` if it does not count them.
      refused: gradients that were refused as not finite, in the current training.
      loss: of the latest step whose loss was read; `None` before.
      seconds: spent by its steps, by part (`runtime.step_times.PARTS`).
      checkpoint: the last committed one, as far as this task knows.
      device: the device that it computes on.
      device_memory_bytes: in use on all devices together; 0 if they do not report it.
      device_memory_limit_bytes: the limit for this process.
      memory_bytes: of the process and those that it started; 0 if unknown.
      memory_parts: what that consists of, by `runtime.memory.PARTS`; empty if unknown.
    """

    task: str
    is_chief: bool
    global_step: int
    last_step: int | None
    steps: int
    examples: int | None
    refused: int
    loss: float | None
    seconds: Mapping[str, float]
    checkpoint: CheckpointStatus | None = None
    device: str = ""
    device_memory_bytes: int = 0
    device_memory_limit_bytes: int = 0
    memory_bytes: int = 0
    memory_parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StepReport:
    """The result of one step of one task. Read-only: it is not frozen because that takes 2 us of every step.

    Attributes:
      loss: of the batch, a float or a scalar array still being computed.
      global_step: updates made by the whole job, after this step.
      applied: whether this step's gradient became an update. If exchanges overlap with computing, this and the
        attributes below describe the step before.
      staleness: of that update.
      done: whether the job has made all requested updates.
      refusal: why the gradient was refused as not finite; empty if it was not.
      metrics: of the batch, by name: scalar arrays, perhaps still being computed.
      worker_state: if a checkpoint waits for `Checkpoints.store_worker_state`: how many of this task's steps came
        after it.
      stopped: why no further step can be made, if another task has ended the training of all.
      steps: how many steps this reports, if one call computed several; loss and metrics are those of the last one.
        0 if the training of all had ended before: then the loss may be NaN and `metrics` empty.
      losses: of each of them, in order; `None` for one step.
      known: of this task's steps that were not reported before, in order: the global step after each and its loss, if
        that becomes known later than the step's report; `None` if this report is complete.
    """

    loss: Any
    global_step: int
    applied: bool
    staleness: int
    done: bool
    refusal: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    worker_state: int | None = None
    stopped: str = ""
    steps: int = 1
    losses: Any = None
    known: Sequence[tuple[int, float]] | None = None
