"""The estimators that come with TensorFlow: linear models, networks, both in one, and a constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainband.compat.ops import reductions
from trainband.compat.ops.activations import relu
from trainband.compat.ops.dtypes import float32
from trainband.compat.tf1.estimators.estimator import Estimator
from trainband.compat.tf1.estimators.heads import ClassHead, Head, RegressionHead
from trainband.compat.tf1.estimators.spec import EstimatorSpec, ModeKeys
from trainband.compat.tf1.feature_columns.column import is_sparse
from trainband.compat.tf1.feature_columns.layers import input_layer, linear_model
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.hosted import record_source
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.networks.functions import batch_normalization, dense
from trainband.compat.tf1.networks.functions import dropout as drop_out
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.initializers import GlorotUniform, Zeros
from trainband.compat.tf1.operations.losses import Reduction
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.summary import histogram, scalar
from trainband.compat.tf1.operations.variable_scope import get_variable, variable_scope
from trainband.compat.tf1.training.global_step import get_global_step
from trainband.compat.tf1.training.optimizer import Optimizer
from trainband.compat.tf1.training.optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    FtrlOptimizer,
    GradientDescentOptimizer,
    RMSPropOptimizer,
)

_OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {
    "Adagrad": AdagradOptimizer,
    "Adam": AdamOptimizer,
    "Ftrl": FtrlOptimizer,
    "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}
_RELU = recorded(relu)


class _Part:
    """A part of a model that gives logits, and what trains it.

    Args:
      scope: where its variables are.
      logits: of features and mode.
      optimizer: an optimizer, a function that makes one, or a name of `_OPTIMIZERS`.
      learning_rate: of one that is named.
    """

    def __init__(
        self, scope: str, logits: Callable[[Any, str, int], Any], optimizer: Any, learning_rate: float
    ) -> None:
        self.scope, self.logits = scope, logits
        self._optimizer, self._rate = optimizer, learning_rate

    def optimizer(self) -> Optimizer:
        """What trains it.

        Raises:
          ValueError: it is no optimizer, and names none.
        """
        found = self._optimizer
        if isinstance(found, str):
            if found not in _OPTIMIZERS:
                raise ValueError(
                    f"Unsupported optimizer name: {found}. Supported names are: {tuple(sorted(_OPTIMIZERS))}"
                )
            return _OPTIMIZERS[found](self._rate)
        if callable(found) and not isinstance(found, Optimizer):
            found = found()
        if not hasattr(found, "minimize"):
            raise ValueError(f"The given object is not an Optimizer instance. Given: {found}")
        return found  # type: ignore[no-any-return]


class _Canned(Estimator):
    """A model of parts whose logits add up."""

    def __init__(self, head: Head, parts: Sequence[_Part], model_dir: Any, config: Any, warm_start_from: Any) -> None:
        if not parts:
            raise ValueError("Either linear_feature_columns or dnn_feature_columns must be defined.")

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            logits = [part.logits(features, mode, head.logits_dimension) for part in parts]
            total = logits[0] if len(logits) == 1 else logits[0] + logits[1]
            return head.create_estimator_spec(features, mode, total, labels, lambda loss: _trained(loss, parts))

        super().__init__(model_fn, model_dir, config, None, warm_start_from)


def _trained(loss: Any, parts: Sequence[_Part]) -> Any:
    """Train each part by its optimizer; the last one counts the step."""
    found: list[Any] = []
    for part in parts:
        variables = get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, f"{part.scope}/")
        step = get_global_step() if part is parts[-1] else None
        with get_default_graph().control_dependencies(found):
            found.append(part.optimizer().minimize(loss, step, variables))
    return group(*found)


def _linear(columns: Any, optimizer: Any, combiner: str, fastest: float) -> _Part:
    def logits(features: Any, mode: str, units: int) -> Any:  # noqa: ARG001
        with variable_scope("linear"):
            return linear_model(features, columns, units, combiner)

    return _Part("linear", logits, optimizer, min(fastest, 1 / math.sqrt(len(_listed(columns)))))


def _network(
    columns: Any, hidden: Sequence[int], optimizer: Any, activation: Any, dropout: float | None, normalizes: bool
) -> _Part:
    def logits(features: Any, mode: str, units: int) -> Any:
        trains = mode == ModeKeys.TRAIN
        with variable_scope("dnn"):
            with variable_scope("input_from_feature_columns"):
                net = input_layer(features, columns)
            for number, size in enumerate(hidden):
                net = dense(net, size, activation, kernel_initializer=GlorotUniform(), name=f"hiddenlayer_{number}")
                if dropout is not None and trains:
                    net = drop_out(net, rate=dropout, training=True)
                if normalizes:
                    with variable_scope(f"hiddenlayer_{number}"):
                        net = batch_normalization(net, momentum=0.999, training=trains, name=f"batchnorm_{number}")
                _summarize(net, f"hiddenlayer_{number}")
            net = dense(net, units, kernel_initializer=GlorotUniform(), name="logits")
            _summarize(net, "logits")
        return net

    return _Part("dnn", logits, optimizer, 0.05)


def _summarize(values: Any, name: str) -> None:
    zeros = recorded(reductions.zero_fraction)(values)
    scalar(f"{name}/fraction_of_zero_values", zeros)
    histogram(f"{name}/activation", values)


def _ones(features: Any, weight_column: Any) -> Any:
    """Return 1 for each example, [batch, 1]."""
    known = features if isinstance(features, Mapping) else {"": features}
    feature = next(one for name, one in known.items() if name != weight_column or len(known) == 1)

    def count(_: Any, values: Any) -> Sequence[Any]:
        return [np.ones((int(values[0]) if is_sparse(feature) else len(values), 1), np.float32)]

    given = convert(feature.dense_shape if is_sparse(feature) else feature)
    return record_source("Ones", count, [given], dtypes=[float32], shapes=[[None, 1]]).outputs[0]


def _constant(optimizer: Any, weight_column: Any) -> _Part:
    def logits(features: Any, mode: str, units: int) -> Any:  # noqa: ARG001
        with variable_scope("baseline"):
            bias = get_variable("bias", [units], initializer=Zeros())
        return bias * _ones(features, weight_column)

    return _Part("baseline", logits, optimizer, 0.3)


def _listed(columns: Any) -> list[Any]:
    return list(columns) if isinstance(columns, list | tuple | set | frozenset) else [columns]


class LinearClassifier(_Canned):
    """Classes by a linear model. `optimizer` is Ftrl by default."""

    def __init__(
        self, feature_columns: Any, model_dir: Any = None, n_classes: int = 2, weight_column: Any = None,
        label_vocabulary: Any = None, optimizer: Any = "Ftrl", config: Any = None, partitioner: Any = None,
        warm_start_from: Any = None, loss_reduction: str = Reduction.SUM, sparse_combiner: str = "sum",
    ) -> None:  # fmt: skip
        del partitioner
        head = ClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        part = _linear(feature_columns, optimizer, sparse_combiner, 0.2)
        super().__init__(head, [part], model_dir, config, warm_start_from)


class LinearRegressor(_Canned):
    """Numbers by a linear model. `optimizer` is Ftrl by default."""

    def __init__(
        self, feature_columns: Any, model_dir: Any = None, label_dimension: int = 1, weight_column: Any = None,
        optimizer: Any = "Ftrl", config: Any = None, partitioner: Any = None, warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM, sparse_combiner: str = "sum",
    ) -> None:  # fmt: skip
        del partitioner
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        part = _linear(feature_columns, optimizer, sparse_combiner, 0.2)
        super().__init__(head, [part], model_dir, config, warm_start_from)


class DNNClassifier(_Canned):
    """Classes by a network. `optimizer` is Adagrad by default."""

    def __init__(
        self, hidden_units: Sequence[int], feature_columns: Any, model_dir: Any = None, n_classes: int = 2,
        weight_column: Any = None, label_vocabulary: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = _RELU,
        dropout: float | None = None, input_layer_partitioner: Any = None, config: Any = None,
        warm_start_from: Any = None, loss_reduction: str = Reduction.SUM, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        del input_layer_partitioner
        head = ClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        part = _network(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
        super().__init__(head, [part], model_dir, config, warm_start_from)


class DNNRegressor(_Canned):
    """Numbers by a network. `optimizer` is Adagrad by default."""

    def __init__(
        self, hidden_units: Sequence[int], feature_columns: Any, model_dir: Any = None, label_dimension: int = 1,
        weight_column: Any = None, optimizer: Any = "Adagrad", activation_fn: Any = _RELU, dropout: float | None = None,
        input_layer_partitioner: Any = None, config: Any = None, warm_start_from: Any = None,
        loss_reduction: str = Reduction.SUM, batch_norm: bool = False,
    ) -> None:  # fmt: skip
        del input_layer_partitioner
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        part = _network(feature_columns, hidden_units, optimizer, activation_fn, dropout, batch_norm)
        super().__init__(head, [part], model_dir, config, warm_start_from)


class _Combined(_Canned):
    """A linear model and a network whose logits add up."""

    def __init__(
        self, head: Head, model_dir: Any, linear: tuple[Any, Any, str],
        network: tuple[Any, Any, Sequence[int] | None, Any, float | None, bool], config: Any, warm_start_from: Any,
    ) -> None:  # fmt: skip
        linear_columns, linear_optimizer, combiner = linear
        columns, optimizer, hidden, activation, dropout, normalizes = network
        if columns and not hidden:
            raise ValueError("dnn_hidden_units must be defined when dnn_feature_columns is specified.")
        parts = []
        if columns:
            parts.append(_network(columns, hidden or (), optimizer, activation, dropout, normalizes))
        if linear_columns:
            parts.append(_linear(linear_columns, linear_optimizer, combiner, 0.005))
        super().__init__(head, parts, model_dir, config, warm_start_from)


class DNNLinearCombinedClassifier(_Combined):
    """Classes by a linear model and a network together."""

    def __init__(
        self, model_dir: Any = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Any = None,
        dnn_activation_fn: Any = _RELU, dnn_dropout: float | None = None, n_classes: int = 2,
        weight_column: Any = None, label_vocabulary: Any = None, input_layer_partitioner: Any = None,
        config: Any = None, warm_start_from: Any = None, loss_reduction: str = Reduction.SUM, batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:  # fmt: skip
        del input_layer_partitioner
        super().__init__(
            ClassHead(n_classes, weight_column, label_vocabulary, loss_reduction),
            model_dir,
            (linear_feature_columns, linear_optimizer, linear_sparse_combiner),
            (dnn_feature_columns, dnn_optimizer, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm),
            config,
            warm_start_from,
        )


class DNNLinearCombinedRegressor(_Combined):
    """Numbers by a linear model and a network together."""

    def __init__(
        self, model_dir: Any = None, linear_feature_columns: Any = None, linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Any = None, dnn_optimizer: Any = "Adagrad", dnn_hidden_units: Any = None,
        dnn_activation_fn: Any = _RELU, dnn_dropout: float | None = None, label_dimension: int = 1,
        weight_column: Any = None, input_layer_partitioner: Any = None, config: Any = None,
        warm_start_from: Any = None, loss_reduction: str = Reduction.SUM, batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:  # fmt: skip
        del input_layer_partitioner
        super().__init__(
            RegressionHead(label_dimension, weight_column, loss_reduction),
            model_dir,
            (linear_feature_columns, linear_optimizer, linear_sparse_combiner),
            (dnn_feature_columns, dnn_optimizer, dnn_hidden_units, dnn_activation_fn, dnn_dropout, batch_norm),
            config,
            warm_start_from,
        )


class BaselineClassifier(_Canned):
    """Classes by how often they occur, whatever the features are."""

    def __init__(
        self, model_dir: Any = None, n_classes: int = 2, weight_column: Any = None, label_vocabulary: Any = None,
        optimizer: Any = "Ftrl", config: Any = None, loss_reduction: str = Reduction.SUM,
    ) -> None:  # fmt: skip
        head = ClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, [_constant(optimizer, weight_column)], model_dir, config, None)


class BaselineRegressor(_Canned):
    """The mean, whatever the features are."""

    def __init__(
        self, model_dir: Any = None, label_dimension: int = 1, weight_column: Any = None, optimizer: Any = "Ftrl",
        config: Any = None, loss_reduction: str = Reduction.SUM,
    ) -> None:  # fmt: skip
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(head, [_constant(optimizer, weight_column)], model_dir, config, None)
