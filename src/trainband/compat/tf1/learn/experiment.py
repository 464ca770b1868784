"""Experiment: an estimator and what it is trained and evaluated with, run as this task's part of a cluster."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from trainband.compat.tf1.estimators.estimator import Estimator as CoreEstimator
from trainband.compat.tf1.estimators.run_config import RunConfig, TaskType
from trainband.compat.tf1.estimators.task import server_of
from trainband.compat.tf1.estimators.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from trainband.compat.tf1.learn.estimator import Estimator


class Experiment:
    """An estimator, and how it is trained and evaluated.

    Args:
      estimator: of `tf.contrib.learn` or `tf.estimator`.
      train_steps: the global step to stop at.
      eval_steps: how many batches an evaluation has.
      eval_metrics: more metrics, for an estimator of `tf.contrib.learn`.
      more: older arguments, which change nothing.
    """

    def __init__(
        self,
        estimator: Estimator | CoreEstimator,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        eval_metrics: Any = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        local_eval_frequency: int | None = None,  # noqa: ARG002
        eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60,
        min_eval_frequency: int | None = None,  # noqa: ARG002 - each new checkpoint is evaluated
        **more: Any,
    ) -> None:
        del more
        self.estimator = estimator
        """What is trained."""
        self._core = estimator.core if isinstance(estimator, Estimator) else estimator
        self._metrics = eval_metrics
        self._train_input_fn, self._eval_input_fn = train_input_fn, eval_input_fn
        self.train_steps, self.eval_steps = train_steps, eval_steps
        self._hooks, self._eval_hooks = list(train_monitors or ()), list(eval_hooks or ())
        self._delay_s, self._throttle_s = eval_delay_secs, continuous_eval_throttle_secs

    def train(self, delay_secs: float | None = None) -> Any:
        """Trains, as this task of the cluster. Returns the estimator."""
        del delay_secs  # workers wait for the chief
        if self._core.config.task_type == TaskType.PS:
            return self.run_std_server()
        self._core.train(self._train_input_fn, hooks=self._hooks, max_steps=self.train_steps)
        return self.estimator

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> Any:
        """Return the metrics of the newest checkpoint."""
        del delay_secs
        return self._evaluated(self.eval_steps, name)

    def train_and_evaluate(self) -> Any:
        """Trains and evaluates: (the metrics, nothing); what a worker does is `train`."""
        if isinstance(self.estimator, Estimator):
            self.estimator._metrics = self._metrics or {}  # noqa: SLF001 - of all evaluations on the way
        found = train_and_evaluate(
            self._core,
            TrainSpec(self._train_input_fn, self.train_steps, self._hooks),
            EvalSpec(
                self._eval_input_fn, self.eval_steps, None, self._eval_hooks, None, self._delay_s, self._throttle_s
            ),
        )
        return found if found is not None else (None, [])

    local_run = train_and_evaluate
    continuous_train_and_eval = train_and_evaluate

    def test(self) -> Any:
        """One step, and an evaluation of one batch."""
        self._core.train(self._train_input_fn, hooks=self._hooks, steps=1)
        return self._evaluated(1, "one_pass")

    def run_std_server(self) -> None:
        """Serves, as a ps does. Does not return."""
        server = server_of(self._core.config)
        if server is None:
            raise ValueError("TF_CONFIG describes no cluster that this task could serve.")
        server.join()

    def _evaluated(self, steps: int | None, name: str | None) -> Any:
        if isinstance(self.estimator, Estimator):
            return self.estimator.evaluate(
                input_fn=self._eval_input_fn, steps=steps, metrics=self._metrics, name=name, hooks=self._eval_hooks
            )
        return self._core.evaluate(self._eval_input_fn, steps=steps, hooks=self._eval_hooks, name=name)


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: Any = None,
    schedule: str | None = None,
    run_config: RunConfig | None = None,
    hparams: Any = None,
) -> Any:
    """Makes an experiment, and does what this task of the cluster is for, or what `schedule` names.

    Raises:
      ValueError: the experiment has no method of this name, or both a directory and a config are given.
    """
    if output_dir is not None and run_config is not None:
        raise ValueError("Only one of output_dir and run_config may be given.")
    if run_config is not None:
        wanted = inspect.signature(experiment_fn).parameters
        given = {"run_config": run_config, "hparams": copy.deepcopy(hparams)}
        names = [name for name in given if name in wanted] or list(given)[: len(wanted)]
        experiment = experiment_fn(*(given[name] for name in names))
    else:
        experiment = experiment_fn(output_dir)
    name = schedule or _default(experiment.estimator.config)
    action = getattr(experiment, name, None)
    if not callable(action):
        raise ValueError(f"Schedule references non-existent task {name}")
    return action()


def _default(config: RunConfig) -> str:
    if config.task_type == TaskType.PS:
        return "run_std_server"
    return "train" if config.master and not config.is_chief and not config.evaluates_alone else "train_and_evaluate"
