"""SessionView: what a session, and every hook in it, knows of the job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from trainband.checkpoint import CheckpointDirectory
from trainband.model.variables import PyTree
from trainband.runtime.step_recording import StepRecorder, StepRecording
from trainband.strategies.base import Progress
from trainband.strategies.engine import Engine
from trainband.train.feed import Feed
from trainband.train.job import Job
from trainband.train.passes import Position
from trainband.train.result import Evaluation


class SessionTrainer(Protocol):
    """What a session asks of a `Trainer`."""

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

    def feed(self, batches: Iterable[PyTree], *, repeat: bool, start: Position | None, track: bool) -> Feed: ...


class SessionView:
    """What one session knows, once it has joined the job.

    Args:
      trainer: what is trained.
      directory: the checkpoints, if there are any.
    """

    def __init__(self, trainer: SessionTrainer, directory: CheckpointDirectory | None) -> None:
        self.trainer = trainer
        """What is trained."""
        self.directory = directory
        """The checkpoints there are; `None` in a session without a `checkpoint_dir`."""
        self._job = trainer.job
        self._engine: Engine | None = None

    @property
    def global_step(self) -> int:
        """Updates made by the whole job, as far as this task knows."""
        return self._joined().global_step

    @property
    def began_at(self) -> int:
        """The global step at which this training first began, before the script was started again."""
        self._joined()
        return self._job.trainings.began_at

    @property
    def task(self) -> str:
        """The name of this task in the cluster, or `local`."""
        return self._joined().task

    @property
    def strategy_name(self) -> str:
        """How the job trains."""
        return self._job.strategy_name

    @property
    def is_chief(self) -> bool:
        """Whether this task speaks for the job. That changes only between a step and its hooks, and at the end."""
        self._joined()
        return bool(self._job.had_duties)

    @property
    def in_parts(self) -> bool:
        """Whether no task has all the params, so that what needs them is done by all at the same time."""
        return self._joined().in_parts

    @property
    def checkpoint_dir(self) -> Path | None:
        """Where the checkpoints go."""
        return self.directory.path if self.directory is not None else None

    @property
    def evaluates_as_it_trains(self) -> bool:
        """Whether evaluations give the metrics of training."""
        return self.trainer.evaluates_as_it_trains

    def params(self) -> PyTree:
        """The params as they now are, as NumPy arrays."""
        return self._joined().params()

    def progress(self) -> Progress | None:
        """How far the job is; `None` where it cannot be told now."""
        return self._joined().progress()

    @property
    def job(self) -> str:
        """A random id of the running job, the same for all its tasks; empty where there is nobody to share it with."""
        return self._joined().job

    def record_steps(self, steps: int) -> StepRecorder | None:
        """Has the next steps of this task recorded; `None` where somebody else has that done just now.

        Args:
          steps: how many.
        """
        times = self._joined().times
        if times.recorder is not None:
            return None
        recorder = times.recorder = StepRecorder(steps)
        return recorder

    def recording(self, recorder: StepRecorder) -> StepRecording:
        """What was recorded; ends it, if it is not over."""
        engine = self._joined()
        if engine.times.recorder is recorder:
            engine.times.recorder = None
        return engine.recording(recorder)

    def evaluate(self, batches: Iterable[PyTree]) -> Evaluation:
        """Loss and metrics with the params as they now are; as `Trainer.evaluate`."""
        return self.trainer.evaluate(batches)

    def say(self, text: str) -> None:
        """A line for people."""
        self._job.say(text)

    def settle(self) -> int:
        """The global step: what was made, and not what is expected of steps under way.

        A hook that has all tasks do something at the same time (`in_parts`) decides by this: the step that it was told
        of may be one too many, because the data of a task has ended, or the chief has ended the training.
        """
        engine = self._joined()
        engine.settle()
        return engine.global_step

    def _joined(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("a MonitoredSession is used inside its with statement.")
        return self._engine
