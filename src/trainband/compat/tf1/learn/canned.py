"""The estimators that came with `tf.contrib.learn`, over those of `tf.estimator`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainband.compat.tf1.estimators import canned
from trainband.compat.tf1.estimators.spec import EstimatorSpec
from trainband.compat.tf1.learn.columns import NAMELESS
from trainband.compat.tf1.learn.estimator import Estimator
from trainband.runtime.overrides import override

_RENAMED = {
    "weight_column_name": "weight_column",
    "label_keys": "label_vocabulary",
    "num_ps_replicas": "",
    "enable_centered_bias": "",
    "input_layer_min_slice_size": "",
    "fix_global_step_increment_bug": "",
    "joint_weights": "",
    "_joint_weights": "",
    "_joint_linear_weights": "",
}
"""Arguments that `tf.estimator` calls otherwise; those that change nothing here have no other name."""


class PredictionKey:
    """What predictions are called."""

    CLASSES = "classes"
    PROBABILITIES = "probabilities"
    LOGITS = "logits"
    LOGISTIC = "logistic"
    SCORES = "scores"


class _Canned(Estimator):
    """An estimator of `tf.estimator` with older methods.

    Raises:
      NotImplementedError: gradients are to be clipped, or embeddings to have learning rates of their own.
    """

    kind: type
    first = PredictionKey.CLASSES
    """The key that `predict` returns."""

    def __init__(
        self,
        *args: Any,
        model_dir: Any = None,
        config: Any = None,
        feature_engineering_fn: Any = None,
        gradient_clip_norm: Any = None,
        embedding_lr_multipliers: Any = None,
        **more: Any,
    ) -> None:
        if gradient_clip_norm is not None or embedding_lr_multipliers is not None:
            raise NotImplementedError(
                "gradient_clip_norm and embedding_lr_multipliers are not supported: pass an optimizer that does it."
            )
        known = {_RENAMED.get(name, name): value for name, value in more.items() if value is not None}
        known.pop("", None)
        inner: Any = None

        def model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            named = features if isinstance(features, Mapping) else {NAMELESS: features}
            spec: EstimatorSpec = inner.model_fn(named, labels, mode, config)
            spec.predictions = _older(spec.predictions)
            return spec

        super().__init__(model_fn, model_dir, config, None, feature_engineering_fn)
        inner = self.kind(*args, config=self.config, **known)

    @override
    def predict(
        self,
        x: Any = None,
        input_fn: Any = None,
        batch_size: int | None = None,
        outputs: Any = None,
        as_iterable: bool = True,
        iterate_batches: bool = False,
    ) -> Any:
        found = super().predict(x, input_fn, batch_size, outputs or [self.first], as_iterable, iterate_batches)
        return found if outputs else self._only(found, self.first)

    def _only(self, found: Any, key: str) -> Any:
        return found[key] if isinstance(found, Mapping) else (one[key] for one in found)


class _Classifier(_Canned):
    def predict_classes(
        self, x: Any = None, input_fn: Any = None, batch_size: int | None = None, as_iterable: bool = True
    ) -> Any:
        """The number of each example's class."""
        return self.predict(x, input_fn, batch_size, None, as_iterable)

    def predict_proba(
        self, x: Any = None, input_fn: Any = None, batch_size: int | None = None, as_iterable: bool = True
    ) -> Any:
        """The probability of each class, for each example."""
        key = PredictionKey.PROBABILITIES
        return self._only(self.predict(x, input_fn, batch_size, [key], as_iterable), key)


class _Regressor(_Canned):
    first = PredictionKey.SCORES

    def predict_scores(
        self, x: Any = None, input_fn: Any = None, batch_size: int | None = None, as_iterable: bool = True
    ) -> Iterator[Any]:
        """The prediction for each example."""
        found: Iterator[Any] = self.predict(x, input_fn, batch_size, None, as_iterable)
        return found


def _older(predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Predictions by their older names; classes are numbers, and one number for each example has no axis of its own."""
    found = dict(predictions)
    if "class_ids" in found:
        found["classes"] = found["class_ids"][:, 0]
    if "predictions" in found:
        scores = found.pop("predictions")
        found["scores"] = scores[:, 0] if scores.shape.as_list()[1:] == [1] else scores
    return found


class LinearClassifier(_Classifier):
    """A linear model of classes."""

    kind = canned.LinearClassifier


class LinearRegressor(_Regressor):
    """A linear model of numbers."""

    kind = canned.LinearRegressor


class DNNClassifier(_Classifier):
    """A network of classes."""

    kind = canned.DNNClassifier


class DNNRegressor(_Regressor):
    """A network of numbers."""

    kind = canned.DNNRegressor


class DNNLinearCombinedClassifier(_Classifier):
    """A linear model and a network of classes."""

    kind = canned.DNNLinearCombinedClassifier


class DNNLinearCombinedRegressor(_Regressor):
    """A linear model and a network of numbers."""

    kind = canned.DNNLinearCombinedRegressor
