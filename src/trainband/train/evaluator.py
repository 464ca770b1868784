"""Evaluator: a task beside the job that evaluates every checkpoint as it appears."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from trainband.checkpoint import LOCK_FILE, Checkpoint, CheckpointDirectory
from trainband.errors import CheckpointError
from trainband.model.contents import contents_of_variables
from trainband.model.variables import PyTree, Variables
from trainband.runtime import SYSTEM, Runtime
from trainband.runtime.waiting import Say, Waiting
from trainband.train.result import Evaluation
from trainband.train.tensorboard_file import EventFile

POLL_S = 0.5
"""Between two scans of the directory."""

START_S = 20.0
"""How long a job may take to start if the directory holds the end of an earlier training."""

ABANDONED_S = 300.0
"""How long the directory's lock may go without renewal before its job counts as gone: as long as a job may take to
start."""


class Evaluator:
    """Evaluates the checkpoints of a directory, oldest first, until it has seen the last of a completed training.

    It only reads. Its results go to their own TensorBoard run, `eval/` in the directory, and to `say`.

    Args:
      evaluate: `evaluate(params, model_state, batches, global_step)`.
      variables: of the model.
      directory: where the job's checkpoints appear.
      batches: any iterable that can be iterated again.
      say: receives lines.
      runtime: this task's.
      start_s: how long a job may take to start if the directory holds a complete training.
      abandoned_s: how long the directory's lock may go without renewal.
    """

    def __init__(
        self,
        evaluate: Callable[[PyTree, PyTree, Iterable[PyTree], int], Evaluation],
        variables: Variables,
        directory: Path,
        batches: Iterable[PyTree],
        *,
        say: Say,
        runtime: Runtime = SYSTEM,
        start_s: float = START_S,
        abandoned_s: float = ABANDONED_S,
    ) -> None:
        self._evaluate_params = evaluate
        self._variables = variables
        self._directory = CheckpointDirectory(directory, say)
        self._batches = batches
        self._say = say
        self._runtime = runtime
        self._start_s = start_s
        self._abandoned_s = abandoned_s

    def run(self) -> list[Evaluation]:
        """Evaluates until the training is complete and no job holds the directory; returns the results in order.

        Raises:
          DeadlineExceeded: no job has held the directory for `abandoned_s`, and its training is not complete.
          ModelMismatch: a checkpoint is of another model.
        """
        found: list[Evaluation] = []
        last, old = -1, max(self._directory.steps(), default=-1)
        waiting, seen = self._new_waiting(), self._renewed()
        with EventFile(self._directory.path / "eval", self._say) as events:
            while True:
                fresh = [step for step in self._directory.steps() if step > last]
                for step in fresh:
                    last = step
                    waiting = self._new_waiting()
                    try:
                        evaluation = self._evaluate(Checkpoint.open(self._directory.path_of(step)))
                    except CheckpointError as exc:  # damaged, or deleted for newer ones while it was read
                        self._say(f"could not evaluate global step {step:,}: {exc}")
                        continue
                    found.append(evaluation)
                    self._write(events, evaluation)
                # While a job holds the directory, a later training run may follow.
                if (
                    self._is_complete(last)
                    and not self._renewed()
                    and (last > old or waiting.waited_s >= self._start_s)
                ):
                    return found
                if not fresh:
                    if (renewed := self._renewed()) != seen:
                        seen = renewed
                        waiting.extend()
                    after = f"after global step {last}" if last >= 0 else "the first"
                    waiting.check(f"a checkpoint in {self._directory.path}, {after}", "check that the job runs")
                    self._runtime.sleep(POLL_S)

    def _new_waiting(self) -> Waiting:
        return Waiting(self._abandoned_s, self._say, self._runtime.clock)

    def _renewed(self) -> int:
        """Returns when the job last renewed the lock, by the file system's clock; 0 without a job."""
        try:
            return (self._directory.path / LOCK_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    def _is_complete(self, step: int) -> bool:
        """Whether a training run ends at this step; its last checkpoint may replace an ordinary one."""
        try:
            return Checkpoint.open(self._directory.path_of(step)).manifest.complete if step >= 0 else False
        except CheckpointError:
            return False

    def _evaluate(self, checkpoint: Checkpoint) -> Evaluation:
        pieces = [piece for (piece,) in contents_of_variables(self._variables)]
        checkpoint.require(pieces, params_only=True)
        values = [checkpoint.read(piece.tensor) for piece in pieces]
        params, state = self._variables.split(values)
        return self._evaluate_params(params, state, self._batches, checkpoint.global_step)

    def _write(self, events: EventFile, evaluation: Evaluation) -> None:
        self._say(f"evaluator: {evaluation}")
        events.add(evaluation.global_step, {"loss": evaluation.loss, **evaluation.metrics})
        events.flush()
