"""EstimatorSpec: what a model function returns, and the modes in which it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.training.scaffold import Scaffold
from trainband.compat.tf1.training.session_run_hook import SessionRunHook

LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"
"""Names of an evaluation's loss, and of its mean over the examples."""


class ModeKeys:
    """What a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
    INFER = "infer"


class EstimatorSpec:
    """What a model function returns.

    Args:
      mode: one of `ModeKeys`.
      predictions: a tensor, or a dictionary of tensors.
      loss: one number.
      train_op: makes one step.
      eval_metric_ops: by name, pairs of a value and an operation that adds a batch to it.
      export_outputs: kept; nothing is exported.
      training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: what happens beside the runs.
      scaffold: how the variables begin, and how they are saved.

    Raises:
      ValueError: what the mode needs is missing, or the loss is not one number.
      TypeError: a hook, a metric or a prediction is of the wrong kind.
    """

    def __init__(
        self,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Any = None,
        training_chief_hooks: Sequence[SessionRunHook] | None = None,
        training_hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        evaluation_hooks: Sequence[SessionRunHook] | None = None,
        prediction_hooks: Sequence[SessionRunHook] | None = None,
    ) -> None:
        if mode == ModeKeys.TRAIN and train_op is None:
            raise ValueError("Missing train_op.")
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL) and loss is None:
            raise ValueError("Missing loss.")
        if mode == ModeKeys.PREDICT and predictions is None:
            raise ValueError("Missing predictions.")
        self.mode = mode
        self.predictions = {} if predictions is None else predictions
        self.loss = None if loss is None else _one_number(loss)
        self.train_op = train_op
        self.eval_metric_ops = {name: _pair(one) for name, one in (eval_metric_ops or {}).items()}
        self.export_outputs = export_outputs
        self.training_chief_hooks = _hooks(training_chief_hooks)
        self.training_hooks = _hooks(training_hooks)
        self.evaluation_hooks = _hooks(evaluation_hooks)
        self.prediction_hooks = _hooks(prediction_hooks)
        self.scaffold = scaffold or Scaffold()
        for name, metric in self.eval_metric_ops.items():
            if not isinstance(metric, tuple | list) or len(metric) != 2:
                raise TypeError(
                    "Values of eval_metric_ops must be (metric_value, update_op) tuples, "
                    f"given: {metric} for key: {name}"
                )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """Return a copy with other values, as of a named tuple."""
        fields = {name: value for name, value in vars(self).items() if name != "mode"}
        return EstimatorSpec(**{"mode": self.mode, **fields, **changes})


def _one_number(loss: Any) -> Any:
    tensor = convert(loss)
    if tensor.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {tensor}")
    return tensor if tensor.shape.ndims in (0, None) else reshape(tensor, [])


def _hooks(hooks: Sequence[SessionRunHook] | None) -> tuple[SessionRunHook, ...]:
    found = tuple(hooks or ())
    for hook in found:
        if not callable(getattr(hook, "before_run", None)):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook}")
    return found


def _pair(metric: Any) -> Any:
    """The value of a metric and its update; one of `tf.keras` has both."""
    return (metric.result(), group(*metric.updates)) if hasattr(metric, "update_state") else metric
