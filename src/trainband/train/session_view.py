"""SessionView: a session's view of the job, shared with its hooks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from trainband.checkpoint import CheckpointDirectory
from trainband.job.engine import Engine
from trainband.model.variables import PyTree
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.strategies.base import Progress
from trainband.train.batch_feed import Feed
from trainband.train.job import Job
from trainband.train.passes import Position
from trainband.train.result import Evaluation


class SessionTrainer(Protocol):
    """The part of a `Trainer` that a session uses."""

    @property
    def job(self) -> Job: ...

    @property
    def console(self) -> bool: ...

    @property
    def keeps_history(self) -> bool: ...

    @property
    def evaluates_as_it_trains(self) -> bool: ...

    def join(self) -> Engine: ...

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation: ...

    def without_ids(self, batch: PyTree) -> PyTree: ...

    def feed(self, batches: Iterable[PyTree], *, repeat: bool, start: Position | None, track: bool) -> Feed: ...


class SessionView:
    """The view of one session, once it has joined the job.

    Args:
      trainer: the trainer of the session.
      directory: the checkpoints, if any.
    """

    def __init__(self, trainer: SessionTrainer, directory: CheckpointDirectory | None) -> None:
        self.trainer = trainer
        """The trainer of the session."""
        self.directory = directory
        """The checkpoints; `None` in a session without a `checkpoint_dir`."""
        self._job = trainer.job
        self._engine: Engine | None = None

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        return self._joined().steps.global_step

    @property
    def began_at(self) -> int:
        """The global step at which this training first began, before any restart of the script."""
        self._joined()
        return self._job.trainings.began_at

    @property
    def task(self) -> str:
        """The name of this task in the cluster, or `local`."""
        return self._joined().peers.task

    @property
    def strategy_name(self) -> str:
        """The name of the job's strategy."""
        return self._job.strategy_name

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief. That changes only between a step and its hooks, and at the end."""
        self._joined()
        return bool(self._job.had_duties)

    @property
    def in_parts(self) -> bool:
        """Whether no task has all the params, so that whatever needs them runs on all at the same time."""
        return self._joined().values.in_parts

    @property
    def checkpoint_dir(self) -> Path | None:
        """The directory of the checkpoints."""
        return self.directory.path if self.directory is not None else None

    @property
    def evaluates_as_it_trains(self) -> bool:
        """Whether evaluations return the metrics of training."""
        return self.trainer.evaluates_as_it_trains

    def params(self) -> PyTree:
        """Returns the current params as NumPy arrays."""
        return self._joined().values.params()

    def progress(self) -> Progress | None:
        """Returns the job's progress; `None` if it is not known now."""
        return self._joined().peers.progress()

    @property
    def job(self) -> str:
        """A random id of the running job, the same for all its tasks; empty for a task that runs alone."""
        return self._joined().peers.job

    def record_steps(self, steps: int) -> StepRecorder | None:
        """Starts to record the next steps of this task; returns `None` if another recording is under way.

        Args:
          steps: how many.
        """
        times = self._joined().steps.times
        if times.recorder is not None:
            return None
        recorder = times.recorder = StepRecorder(steps)
        return recorder

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """Returns the recording; ends it if it is not over."""
        engine = self._joined()
        if engine.steps.times.recorder is recorder:
            engine.steps.times.recorder = None
        return engine.peers.recording(recorder)

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """Returns loss and metrics with the current params; as `Trainer.evaluate`."""
        return self.trainer.evaluate(batches)

    def say(self, text: str) -> None:
        """Prints a line for people."""
        self._job.say(text)

    def settle(self) -> int:
        """Returns the global step of completed updates, without those expected of pending steps.

        A hook that makes all tasks act at the same time (`in_parts`) decides by this: the last reported step may not
        count, because the data of a task has ended, or the chief has ended the training.
        """
        steps = self._joined().steps
        steps.settle()
        return steps.global_step

    def _joined(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("a MonitoredSession must be used inside its with statement.")
        return self._engine
