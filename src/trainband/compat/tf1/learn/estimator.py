"""Estimator as `tf.contrib.learn` had it: `fit`, `evaluate` and `predict`, of arrays or of input functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from trainband.compat.tf1.estimators import estimator as estimators
from trainband.compat.tf1.estimators.inputs import numpy_input_fn
from trainband.compat.tf1.estimators.run_config import RunConfig
from trainband.compat.tf1.estimators.spec import EstimatorSpec, ModeKeys
from trainband.compat.tf1.learn.columns import NAMELESS
from trainband.compat.tf1.training.session_run_hook import SessionRunHook


class ModelFnOps(SimpleNamespace):
    """What a model function returns."""

    def __init__(
        self,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        output_alternatives: Any = None,
        training_chief_hooks: Sequence[SessionRunHook] | None = None,
        training_hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Any = None,
    ) -> None:
        super().__init__(
            mode=mode, predictions=predictions, loss=loss, train_op=train_op, eval_metric_ops=eval_metric_ops,
            output_alternatives=output_alternatives, training_chief_hooks=training_chief_hooks,
            training_hooks=training_hooks, scaffold=scaffold,
        )  # fmt: skip

    def spec(self) -> EstimatorSpec:
        """The same for `tf.estimator`."""
        held = {name: value for name, value in vars(self).items() if name != "output_alternatives"}
        return EstimatorSpec(**held)


class MetricSpec:
    """A metric of an evaluation: a function of predictions and labels, and which of them it is given."""

    def __init__(
        self,
        metric_fn: Callable[..., Any],
        prediction_key: str | None = None,
        label_key: str | None = None,
        weight_key: str | None = None,
    ) -> None:
        self.metric_fn, self.prediction_key = metric_fn, prediction_key
        self.label_key, self.weight_key = label_key, weight_key

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """(the value, what adds a batch to it)."""
        more = {} if self.weight_key is None else {"weights": inputs[self.weight_key]}
        return self.metric_fn(_part(predictions, self.prediction_key), _part(labels, self.label_key), **more)


class Estimator:
    """Trains, evaluates and asks a model that a function builds.

    Args:
      model_fn: of features and labels, and of those of `mode`, `params`, `config` and `model_dir` that it names:
        `ModelFnOps`, an `EstimatorSpec`, or (predictions, loss, train_op).
      feature_engineering_fn: changes features and labels first.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        feature_engineering_fn: Callable[..., Any] | None = None,
    ) -> None:
        self._metrics: Mapping[Any, Any] = {}

        def built(features: Any, labels: Any, mode: str, params: Any, config: RunConfig) -> EstimatorSpec:
            if feature_engineering_fn is not None:
                features, labels = feature_engineering_fn(features, labels)
            known = {"mode": mode, "params": params, "config": config, "model_dir": config.model_dir}
            names = inspect.signature(model_fn).parameters
            found = model_fn(features, labels, **{name: one for name, one in known.items() if name in names})
            spec = _spec_of(found, mode)
            if mode == ModeKeys.EVAL:
                for name, metric in self._metrics.items():
                    spec.eval_metric_ops |= _made(name, metric, features, labels, spec.predictions)
            return spec

        self.core = estimators.Estimator(built, model_dir, config, {} if params is None else params)
        """The one of `tf.estimator` that does the work."""

    # --- what it is

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries go."""
        return self.core.model_dir

    @property
    def config(self) -> RunConfig:
        """How it runs."""
        return self.core.config

    @property
    def params(self) -> Any:
        """What the model function is given."""
        return self.core.params

    def get_variable_names(self) -> list[str]:
        """The names of what the newest checkpoint holds."""
        return self.core.get_variable_names()

    def get_variable_value(self, name: str) -> Any:
        """One value of the newest checkpoint."""
        return self.core.get_variable_value(name)

    def export_savedmodel(self, *args: Any, **more: Any) -> Any:
        """Not supported; see `tf.estimator.Estimator`."""
        return self.core.export_savedmodel(*args, **more)

    # --- what it does

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        monitors: Sequence[Any] | None = None,
        max_steps: int | None = None,
    ) -> Estimator:
        """Trains. Returns itself.

        Args:
          x, y: arrays, in place of an input function; without end, in random order.
          monitors: hooks.
        """
        for one in monitors or ():
            if hasattr(one, "set_estimator"):
                one.set_estimator(self)
        given = input_fn or _of_arrays(x, y, batch_size, epochs=None)
        self.core.train(given, hooks=monitors, steps=steps, max_steps=max_steps)
        return self

    partial_fit = fit

    def train(self, input_fn: Callable[..., Any], steps: int | None = None, hooks: Any = None) -> Estimator:
        """Like `fit`."""
        return self.fit(input_fn=input_fn, steps=steps, monitors=hooks)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        input_fn: Callable[..., Any] | None = None,
        feed_fn: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        metrics: Mapping[Any, Any] | None = None,
        name: str | None = None,
        checkpoint_path: str | None = None,
        hooks: Any = None,
        log_progress: bool = True,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return the metrics by name.

        Args:
          metrics: more of them, by name, or by name and which prediction: each a `MetricSpec` or a function.

        Raises:
          NotImplementedError: something is to be fed.
        """
        if feed_fn is not None:
            raise NotImplementedError("evaluate(feed_fn=...) is not supported: use an input_fn.")
        given = input_fn or _of_arrays(x, y, batch_size, epochs=1, shuffle=False)
        self._metrics = metrics or {}
        try:
            return self.core.evaluate(given, steps=steps, hooks=hooks, checkpoint_path=checkpoint_path, name=name)
        finally:
            self._metrics = {}

    def predict(
        self,
        x: Any = None,
        input_fn: Callable[..., Any] | None = None,
        batch_size: int | None = None,
        outputs: Any = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        """The predictions: one example after the other, or as arrays unless `as_iterable`."""
        given = input_fn or _of_arrays(x, None, batch_size, epochs=1, shuffle=False)
        found = self._predicted(given, outputs, single=as_iterable and not iterate_batches)
        if as_iterable:
            return found
        batches = list(found)
        if not isinstance(batches[0], Mapping):
            return np.concatenate(batches)
        return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}

    def _predicted(self, input_fn: Callable[..., Any], outputs: Any, *, single: bool) -> Iterator[Any]:
        return self.core.predict(input_fn, outputs, yield_single_examples=single)


class SKCompat:
    """An estimator with the methods of scikit-learn."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def fit(
        self,
        x: Any,
        y: Any,
        batch_size: int = 128,
        steps: int | None = None,
        max_steps: int | None = None,
        monitors: Any = None,
    ) -> SKCompat:
        """Trains. Returns itself."""
        self._estimator.fit(x, y, None, steps, batch_size, monitors, max_steps)
        return self

    def score(
        self,
        x: Any,
        y: Any,
        batch_size: int = 128,
        steps: int | None = None,
        metrics: Any = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Return the metrics by name."""
        return self._estimator.evaluate(x, y, batch_size=batch_size, steps=steps, metrics=metrics, name=name)

    def predict(self, x: Any, batch_size: int = 128, outputs: Any = None) -> Any:
        """The predictions by name, as arrays."""
        return Estimator.predict(self._estimator, x, batch_size=batch_size, outputs=outputs, as_iterable=False)


def _of_arrays(x: Any, y: Any, batch_size: int | None, *, epochs: int | None, shuffle: bool = True) -> Any:
    if x is None:
        raise ValueError("Either x or input_fn must be provided.")
    features = x if isinstance(x, Mapping) else {NAMELESS: np.asarray(x)}
    features = {name: _single(np.asarray(one)) for name, one in features.items()}
    count = len(next(iter(features.values())))
    named = numpy_input_fn(features, y if y is None else np.asarray(y), batch_size or count, epochs, shuffle)
    if isinstance(x, Mapping):
        return named

    def input_fn() -> Any:
        found = named()
        return found[NAMELESS] if y is None else (found[0][NAMELESS], found[1])

    return input_fn


def _single(array: Any) -> Any:
    """Numbers of double precision as single ones, as TensorFlow's feeder made them."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _spec_of(found: Any, mode: str) -> EstimatorSpec:
    if isinstance(found, EstimatorSpec):
        return found
    if isinstance(found, ModelFnOps):
        return found.spec()
    predictions, loss, train_op = found
    return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train_op)


def _made(name: Any, metric: Any, features: Any, labels: Any, predictions: Any) -> dict[str, Any]:
    title, key = name if isinstance(name, tuple) else (name, None)
    one = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, key)
    return {title: one.create_metric_ops(features, labels, predictions)}


def _part(given: Any, key: str | None) -> Any:
    if not isinstance(given, Mapping):
        return given
    if key is not None:
        return given[key]
    if len(given) == 1:
        return next(iter(given.values()))
    return given["classes" if "classes" in given else "predictions"]
