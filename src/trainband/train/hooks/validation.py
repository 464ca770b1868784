"""ValidationHook: the chief evaluates regularly, keeps the best checkpoint, and may end the training."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from trainband.errors import ModelError
from trainband.model.variables import PyTree
from trainband.runtime.overrides import override
from trainband.strategies.base import StepReport
from trainband.train.hooks.base import Hook
from trainband.train.hooks.session import EvaluatingSession
from trainband.train.hooks.timer import Timer
from trainband.train.result import Evaluation

_SMALLER_IS_BETTER = re.compile(
    r"loss|error|perplexity|cross_?entropy|divergence|deviance|distance"
    r"|(?<![a-z])(?:err|mae|mse|rmse|msle|mape|nll|ppl|wer|cer)(?![a-z])"
)
"""Matches a metric's name in lower case: the short ones only as a word, or `answer` would match."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStopping:
    """Ends the training when validation has not improved for a while.

    Attributes:
      metric: `loss`, or the name of one of the loss's metrics.
      patience: validations without an improvement, after which it ends.
      mode: whether the smallest (`min`) or the largest (`max`) value is the best; `auto`: the smallest of a loss
        or error (also under names such as mae, mse, rmse, nll, perplexity, cross_entropy, divergence, wer), the
        largest of anything else.
      min_delta: the smallest change that counts as an improvement.

    Raises:
      ValueError: `mode` is unknown, or `patience` is less than 1.

    Source: Prechelt 1998, Early Stopping – But When?; the names are Keras's.
    """

    metric: str = "loss"
    patience: int = 3
    mode: str = "auto"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "min", "max"):
            raise ValueError(f"EarlyStopping.mode must be auto, min or max, got {self.mode!r}.")
        if self.patience < 1:
            raise ValueError(f"EarlyStopping.patience must be at least 1 validation, got {self.patience}.")

    def better(self, value: float, best: float | None) -> bool:
        """Whether `value` is an improvement on `best`; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        smallest = self.mode == "min" or (
            self.mode == "auto" and _SMALLER_IS_BETTER.search(self.metric.lower()) is not None
        )
        return value < best - self.min_delta if smallest else value > best + self.min_delta


class ValidationHook(Hook):
    """Evaluates on the chief at an interval and at the end; in a session with a directory, keeps the best.

    The best is saved when it is found. Under `Sync`, and in one process, the params have not changed meanwhile; under
    other rules the checkpoint has the params of the moment at which it is written.

    If no process has all the params (`ModelParallel` over several workers), all evaluate together, on the same
    batches.

    Meanwhile the other workers continue, or wait if the update rule requires it. A worker that becomes the chief
    starts from the best checkpoint that is marked in the directory, and counts the validations without an improvement
    from 0.

    Args:
      batches: any iterable that can be iterated again.
      every_steps: global steps between two evaluations.
      early_stopping: when to end, and the metric that selects the best; without it, the loss does.

    Raises:
      ModelError: during the training: the loss returns no metric of that name.
    """

    def __init__(
        self, batches: Iterable[PyTree], *, every_steps: int, early_stopping: EarlyStopping | None = None
    ) -> None:
        self._batches = batches
        self._timer = Timer("ValidationHook", every_steps=every_steps, every_secs=None)
        self._stopping = early_stopping
        self._criterion = early_stopping or EarlyStopping()
        self._best: float | None = None
        self._recalled = False
        self._is_known = False
        """Whether the loss returns the metric."""
        self._without = 0
        self._evaluations: list[Evaluation] = []

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The results, in order."""
        return tuple(self._evaluations)

    @override
    def begin(self, session: EvaluatingSession) -> None:
        self._timer.record(session.global_step, time.monotonic())
        self._recalled = False
        if session.is_chief:
            self._recall(session)

    @override
    def after_run(self, session: EvaluatingSession, report: StepReport) -> None:
        if not self._is_known and report.steps and session.evaluates_as_it_trains:
            self._require_metric(("loss", *report.metrics))
            self._is_known = True
        if not session.is_chief:
            self._recalled = False
        if not self._timer.due(report.global_step, time.monotonic()):
            return
        step = session.settle()
        if not self._timer.due(step, time.monotonic()):
            return  # the step did not count
        if session.is_chief or session.in_parts:
            self._validate(session)
        else:
            self._timer.record(step, time.monotonic())

    @override
    def end(self, session: EvaluatingSession) -> None:
        last = self._evaluations[-1].global_step if self._evaluations else -1
        if (session.is_chief or session.in_parts) and last != session.global_step:
            self._validate(session)

    def _require_metric(self, names: Iterable[str]) -> None:
        names = tuple(names)
        if self._criterion.metric not in names:
            raise ModelError(
                f"EarlyStopping.metric is {self._criterion.metric!r}, but the loss returns only {', '.join(names)}."
            )

    def _recall(self, session: EvaluatingSession) -> None:
        """Restores the best found by an earlier run of this worker or by the chief before it."""
        self._recalled = True
        known = session.directory.best if session.directory is not None else None
        if known is not None and known[1] == self._criterion.metric:
            self._best = known[2]

    def _validate(self, session: EvaluatingSession) -> None:
        if not self._recalled:
            self._recall(session)
            self._without = 0
        evaluation = session.evaluate(self._batches)
        self._timer.record(evaluation.global_step, time.monotonic())
        self._evaluations.append(evaluation)
        if session.is_chief:
            session.say(f"validation: {evaluation}")
        values = {"loss": evaluation.loss, **evaluation.metrics}
        self._require_metric(values)
        value = values[self._criterion.metric]
        is_best = self._criterion.better(value, self._best)
        session.record_validation(values, self._criterion.metric if is_best else "")
        if is_best:
            self._best, self._without = value, 0
            return
        self._without += 1
        if self._stopping is not None and self._without >= self._stopping.patience and not session.should_stop():
            session.request_stop(
                f"{self._criterion.metric} has not improved on {self._best} in {self._without} validations"
            )
