"""Heads: from logits to a loss, predictions and metrics, by the kind of labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import activations, array, math, reductions
from trainband.compat.ops.dtypes import float32, int32, int64, string
from trainband.compat.tf1.estimators.exporters import ClassificationOutput, PredictOutput, RegressionOutput
from trainband.compat.tf1.estimators.spec import EstimatorSpec, ModeKeys
from trainband.compat.tf1.feature_columns.column import Features, is_sparse
from trainband.compat.tf1.feature_columns.numeric import NumericColumn, numeric_column
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf1.graphs.graph import Tensor, get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.modules import look_up
from trainband.compat.tf1.operations.array import reshape
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.losses import (
    Reduction,
    compute_weighted_loss,
    mean_squared_error,
    sigmoid_cross_entropy,
    sparse_softmax_cross_entropy,
)
from trainband.compat.tf1.operations.recorder import recorded
from trainband.runtime.overrides import override

Metrics = dict[str, Any]
_cast, _concat = recorded(math.cast), recorded(array.concat)


class Head(ABC):
    """What the labels of a model are.

    Args:
      logits_dimension: how many logits there are for each example.
      weight_column: the feature, or the numeric column, by which each example's loss is multiplied.
      loss_reduction: how the losses of a batch become one.

    Raises:
      ValueError: no such reduction.
    """

    def __init__(self, logits_dimension: int, weight_column: Any, loss_reduction: str) -> None:
        if loss_reduction not in vars(Reduction).values() or loss_reduction == Reduction.NONE:
            raise ValueError(f"Invalid loss_reduction: {loss_reduction}")
        self.logits_dimension = logits_dimension
        self.weight_column = weight_column
        self._reduction = loss_reduction

    def create_estimator_spec(
        self, features: Any, mode: str, logits: Any, labels: Any, train_op_fn: Callable[[Any], Any]
    ) -> EstimatorSpec:
        """Return what a model function does.

        Raises:
          ValueError: there are no labels where they are needed, or they are not of the right kind.
        """
        logits = convert(logits)
        predictions, outputs = self._predictions(logits)
        if mode == ModeKeys.PREDICT:
            exports = {"serving_default": outputs, "predict": PredictOutput(predictions)}
            return EstimatorSpec(mode, predictions=predictions, export_outputs=exports)
        if labels is None:
            raise ValueError("You must provide a labels Tensor. Given: None.")
        if is_sparse(labels):
            raise ValueError("SparseTensor labels are not supported. labels must be a Tensor of shape [batch, 1].")
        targets = self._targets(convert(labels))
        weights = self._weights(features)
        losses = self._losses(targets, logits)
        loss = compute_weighted_loss(losses, 1.0 if weights is None else weights, reduction=self._reduction)
        if mode == ModeKeys.EVAL:
            metrics = self._metrics(targets, predictions, weights)
            metrics["average_loss"] = metric("mean")(losses, weights, name="average_loss")
            return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops=metrics)
        updates = get_default_graph().get_collection(GraphKeys.UPDATE_OPS)
        train_op = train_op_fn(loss)
        return EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=group(train_op, *updates))

    def _weights(self, features: Any) -> Any:
        if self.weight_column is None:
            return None
        column = (
            self.weight_column if isinstance(self.weight_column, NumericColumn) else numeric_column(self.weight_column)
        )
        return column.dense(Features(features))

    @abstractmethod
    def _predictions(self, logits: Tensor) -> tuple[dict[str, Any], Any]:
        """(the predictions by name, what would be exported)."""

    @abstractmethod
    def _targets(self, labels: Tensor) -> Tensor:
        """The labels, [batch, labels of each example]."""

    @abstractmethod
    def _losses(self, targets: Tensor, logits: Tensor) -> Any:
        """The loss of each example."""

    @abstractmethod
    def _metrics(self, targets: Tensor, predictions: Mapping[str, Any], weights: Any) -> Metrics:
        """The metrics, besides the losses."""


class RegressionHead(Head):
    """Labels are numbers; the loss is the squared error."""

    @override
    def _predictions(self, logits: Tensor) -> tuple[dict[str, Any], Any]:
        return {"predictions": logits}, RegressionOutput(value=logits)

    @override
    def _targets(self, labels: Tensor) -> Tensor:
        numbers: Tensor = _cast(reshape(labels, [-1, self.logits_dimension]), float32)
        return numbers

    @override
    def _losses(self, targets: Tensor, logits: Tensor) -> Any:
        return mean_squared_error(targets, logits, reduction=Reduction.NONE, loss_collection=None)

    @override
    def _metrics(self, targets: Tensor, predictions: Mapping[str, Any], weights: Any) -> Metrics:
        mean = metric("mean")
        return {
            "prediction/mean": mean(predictions["predictions"], weights, name="prediction/mean"),
            "label/mean": mean(targets, weights, name="label/mean"),
        }


class ClassHead(Head):
    """Labels are classes, of which each example has one.

    Args:
      n_classes: how many there are.
      label_vocabulary: the labels as text, in order; without it, labels are numbers.
    """

    def __init__(
        self, n_classes: int, weight_column: Any, label_vocabulary: Sequence[Any] | None, loss_reduction: str
    ) -> None:
        if n_classes < 2:
            raise ValueError(f"n_classes must be > 1 for classification: {n_classes}.")
        super().__init__(1 if n_classes == 2 else n_classes, weight_column, loss_reduction)
        words = [str(i) for i in range(n_classes)] if label_vocabulary is None else list(label_vocabulary)
        if len(words) != n_classes:
            raise ValueError(f"label_vocabulary has {len(words)} labels, but n_classes is {n_classes}.")
        self.n_classes = n_classes
        self._has_vocabulary = label_vocabulary is not None
        self._words = np.array([one if isinstance(one, bytes) else str(one).encode() for one in words], object)

    @property
    def _is_binary(self) -> bool:
        return self.n_classes == 2

    @override
    def _predictions(self, logits: Tensor) -> tuple[dict[str, Any], Any]:
        scores = _concat([recorded(array.zeros_like)(logits), logits], 1) if self._is_binary else logits
        ids = recorded(array.expand_dims)(recorded(reductions.argmax)(scores, 1), -1)
        probabilities = recorded(activations.softmax)(scores, name="probabilities")
        shape = [ids.shape.sizes[0] if ids.shape.sizes else None, self.n_classes]
        words, every = self._words, np.arange(self.n_classes, dtype=np.int32)

        def name(_: Any, found: Any) -> Sequence[Any]:
            return [words[found], np.tile(words, (len(found), 1)), np.tile(every, (len(found), 1))]

        named = record_source(
            "AsString",
            name,
            [ids],
            dtypes=[string, string, int32],
            shapes=[[shape[0], 1], shape, shape],
            name="classes",
        ).outputs
        found = {"logits": logits} | (
            {"logistic": recorded(math.sigmoid)(logits, name="logistic")} if self._is_binary else {}
        )
        found |= {"probabilities": probabilities, "class_ids": ids, "classes": named[0]}
        found |= {"all_class_ids": named[2], "all_classes": named[1]}
        return found, ClassificationOutput(scores=probabilities, classes=named[1])

    @override
    def _targets(self, labels: Tensor) -> Tensor:
        if self._has_vocabulary != (labels.dtype == string):
            wanted = "string. Instead got" if self._has_vocabulary else "integer. Instead got"
            raise ValueError(f"Labels dtype should be {wanted} {labels.dtype.name}.")
        if not (self._is_binary or self._has_vocabulary or labels.dtype.is_integer):
            raise ValueError(f"Labels dtype should be integer. Instead got {labels.dtype.name}.")
        sizes = labels.shape.sizes
        shape = [sizes[0] if sizes else None, 1]
        kind = int64 if self._has_vocabulary else labels.dtype
        places = {word: place for place, word in enumerate(self._words.tolist())}

        def check(_: Any, values: Any) -> Sequence[Any]:
            numbers = values.reshape(len(values), -1)
            if self._has_vocabulary:
                numbers = np.array([places.get(text, -1) for text in numbers.ravel()], np.int64).reshape(numbers.shape)
            wrong = numbers[(numbers < 0) | (numbers > self.n_classes - 1)]
            if wrong.size:
                text = f"Labels must be <= n_classes - 1 and >= 0: got {wrong[0]} of {self.n_classes} classes"
                raise InvalidArgumentError(None, labels.op, f"assertion failed: {text}")
            return [numbers]

        return record_source("CheckedLabels", check, [labels], dtypes=[kind], shapes=[shape], name="labels").outputs[0]

    @override
    def _losses(self, targets: Tensor, logits: Tensor) -> Any:
        how: dict[str, Any] = {"reduction": Reduction.NONE, "loss_collection": None}
        if self._is_binary:
            return sigmoid_cross_entropy(_cast(targets, float32), logits, **how)
        losses = sparse_softmax_cross_entropy(reshape(targets, [-1]), logits, **how)
        return recorded(array.expand_dims)(losses, -1)

    @override
    def _metrics(self, targets: Tensor, predictions: Mapping[str, Any], weights: Any) -> Metrics:
        ids = predictions["class_ids"]
        numbers = _cast(targets, int64)
        found = {"accuracy": metric("accuracy")(numbers, ids, weights, name="accuracy")}
        if not self._is_binary:
            return found
        logistic = predictions["logistic"]
        for name in ("precision", "recall"):
            found[name] = metric(name)(numbers, ids, weights, name=name)
        found["prediction/mean"] = metric("mean")(logistic, weights, name="prediction/mean")
        value, update = found["label/mean"] = metric("mean")(targets, weights, name="label/mean")
        larger = recorded(math.maximum)
        found["accuracy_baseline"] = larger(value, 1.0 - value), larger(update, 1.0 - update)
        for name, curve in (("auc", "ROC"), ("auc_precision_recall", "PR")):
            if look_up("tf.metrics.auc") is None:
                found[name] = metric("auc")(numbers, logistic, weights, curve=curve, name=name)
        return found


def metric(name: str) -> Callable[..., Any]:
    """Return a function of `tf.metrics`."""
    from trainband.compat.tf1.namespace import find  # here: it loads whatever a script names

    found: Callable[..., Any] = find("tf.metrics", name)
    return found
