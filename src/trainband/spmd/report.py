"""What an engine reports: of a step, and of the job for the display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainband.ps.statistics import CheckpointStatus

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
    """The share of each part of its steps in its time, lately (`runtime.step_times.PARTS` and `other`); empty where
    nobody has said."""
    memory_bytes: int = 0
    """Resident memory of its process; here and below, 0 where its platform doesn't say."""
    device_memory_bytes: int = 0
    """In use on the devices that it computes on, all together."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """Where a worker finds one shard."""

    shard: int
    ps: str
    term: int
    """In which that ps has it."""
    lineage: str
    """Of its values: another one means that they were restored or made anew."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, for the display."""

    global_step: int
    last_step: int | None
    """Where this training ends; `None` while nobody knows."""
    rate: float
    """Global steps per second."""
    loss: float | None
    workers: tuple[WorkerRow, ...] = ()
    examples_rate: float = 0.0
    """Examples per second that become part of updates."""
    checkpoint: CheckpointStatus | None = None
    """The last one that has landed."""
    shards: tuple[ShardRow, ...] = ()
    learning_rate: float | None = None
    """That of the last update, where the ps know it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatistics:
    """What one task that trains has done, as it knows by itself: nobody is asked for it.

    Attributes:
      task: its name in the cluster, or `local`.
      is_chief: whether it has the chief's duties now.
      global_step: updates made by the whole job, as far as this task knows.
      last_step: where the training under way ends; `None` where this task does not know or there is no limit.
      steps: those of this task, with those before it was resumed from a checkpoint.
      examples: of these steps in this process; `None` where it does not count them.
      refused: gradients that were refused as not finite, in the training under way.
      loss: of its latest step that has been looked at; `None` before.
      seconds: what its steps have spent, by part (`runtime.step_times.PARTS`).
      checkpoint: the last one that has landed, as far as this task knows.
      device: what it computes on.
      device_memory_bytes: in use there, all devices together; 0 where they don't say.
      device_memory_limit_bytes: how much they have for this process.
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


@dataclass(slots=True)
class StepReport:
    """What one step of one task did. To be read only: it is not frozen because that takes 2 us of every step.

    Attributes:
      loss: of the batch, a float or a scalar array still being computed.
      global_step: updates made by the whole job, after this step.
      applied: whether this step's gradient became an update. Where exchanges overlap with computing, this and
        what follows speak of the step before.
      staleness: of that update.
      done: whether the job has made all the updates that were asked for.
      refusal: why the gradient was refused as not finite; empty if it was not.
      metrics: of the batch, by name: scalar arrays, perhaps still being computed.
      worker_state: where a checkpoint waits for `Engine.leave_worker_state`: how many of this task's steps came
        after it.
      stopped: why no further step can be made, where another task has ended the training of all.
      steps: how many steps this is the report of, where several were computed in one call; loss and metrics are those
        of the last one. 0 where the training of all had ended before: the loss may be NaN then, and there may be no
        metrics.
      losses: of each of them, in order; `None` for one step.
      known: of this task's steps that no report has told of before, in order: the global step after each and its
        loss, where that becomes known later than the report of the step; `None` where all is said here.
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
