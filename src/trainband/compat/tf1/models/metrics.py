"""`tf.keras.metrics`: metrics over many batches, and metrics by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trainband.compat.ops import keras_losses as formulas
from trainband.compat.ops import math
from trainband.compat.ops import metrics as counts
from trainband.compat.ops.table import TABLE
from trainband.compat.tf1.graphs.graph import get_default_graph
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.scopes import control_dependencies
from trainband.compat.tf1.models import losses, phase
from trainband.compat.tf1.models.layer import Layer, sources_of
from trainband.compat.tf1.models.named import snake_case
from trainband.compat.tf1.operations import metrics as streaming
from trainband.compat.tf1.operations.control_flow import group
from trainband.compat.tf1.operations.recorder import recorded, recorder


class Metric(Layer):
    """A metric: `update_state` gives the operation that adds a batch, and `result` the value so far.

    Subclasses of scripts create variables by `add_weight`, and define both.
    """

    def __init__(self, name: str | None = None, dtype: Any = None, **more: Any) -> None:
        super().__init__(name=name, dtype=dtype, **more)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Groups the updates that `update_state` returns, and notes them."""
        made = super().__new__(cls, *args, **kwargs)
        inner = made.update_state

        @functools.wraps(inner)
        def update_state(*values: Any, **more: Any) -> Any:
            found = inner(*values, **more)
            if found is not None:
                made._updates.append(found)
            return found

        made.__dict__["update_state"] = update_state
        return made

    def add_weight(self, name: Any = None, shape: Any = (), initializer: Any = "zeros", **more: Any) -> Any:  # type: ignore[override]
        """Create a variable that each process keeps to itself."""
        with get_default_graph().name_scope(self.name):
            made = super().add_weight(name, shape, initializer=initializer, **{**more, "trainable": False})
        graph = made.graph
        graph.get_collection_ref(GraphKeys.GLOBAL_VARIABLES).remove(made)
        for collection in (GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES):
            graph.add_to_collection(collection, made)
        return made

    def update_state(self, *args: Any, **kwargs: Any) -> Any:
        """Return the operation that adds a batch."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def result(self) -> Any:
        """The value so far."""
        raise NotImplementedError("Must be implemented in subclasses.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value after adding a batch."""
        update = self.update_state(*args, **kwargs)
        with control_dependencies([group(update)]):
            return _identity(self.result())

    def reset_states(self) -> None:
        """Begins again."""
        session = phase.get_session()
        for one in self.weights:
            session.run(one.initializer)


_identity = recorder(TABLE["tf.identity"])


class _Streaming(Metric):
    """A metric of `tf.metrics`: what that returns is the value and the update."""

    def _found(self, metric: tuple[Any, Any]) -> Any:
        if not hasattr(self, "_value"):
            self._value = metric[0]
            self._weights += [(one, False) for one in _variables_of(metric[0])]
        return metric[1]

    def result(self) -> Any:
        """The value so far.

        Raises:
          ValueError: nothing has been added.
        """
        if not hasattr(self, "_value"):
            raise ValueError(f"The metric {self.name} has no value before `update_state` is called.")
        return self._value


def _variables_of(value: Any) -> list[Any]:
    found = [one.op.attributes.get("variable") for one in sources_of([value])]
    return list(dict.fromkeys(one for one in found if one is not None))


class Mean(_Streaming):
    """The mean of values."""

    def update_state(self, values: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds values."""
        return self._found(streaming.mean(values, sample_weight, name=self.name))


class Sum(Metric):
    """The sum of values."""

    def update_state(self, values: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds values."""
        if not self._weights:
            self.total = self.add_weight("total")
        return self.total.assign_add(recorded(counts.weighted_sums)(values, sample_weight)[0])

    def result(self) -> Any:
        """The value so far."""
        return convert(self.total)


class MeanMetricWrapper(_Streaming):
    """The mean of a function of labels and predictions."""

    function: Callable[..., Any]
    _title = ""

    def __init__(self, fn: Any = None, name: str | None = None, dtype: Any = None, **settings: Any) -> None:
        if isinstance(fn, str):  # a metric's own class takes the name first
            fn, name = None, fn
        super().__init__(name or self._title or snake_case(type(self).__name__), dtype)
        if fn is not None:
            self.__dict__["function"] = fn
        self._settings = settings

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds a batch."""
        values = self.function(convert(y_true), convert(y_pred), **self._settings)
        if sample_weight is not None:
            sample_weight = losses.weighted(values * 0.0 + 1.0, sample_weight, "none")
        return self._found(streaming.mean(values, sample_weight, name=self.name))


def _class(title: str, function: Callable[..., Any], name: str = "") -> type[MeanMetricWrapper]:
    more = {"function": staticmethod(function), "_title": name, "__doc__": function.__doc__, "__module__": __name__}
    return type(title, (MeanMetricWrapper,), more)


def _equal(y_true: Any, y_pred: Any) -> Any:
    """Whether labels and predictions are equal."""
    return recorded(counts.matches)(y_true, y_pred)


Accuracy = _class("Accuracy", _equal)
BinaryAccuracy = _class("BinaryAccuracy", recorded(formulas.binary_accuracy))
CategoricalAccuracy = _class("CategoricalAccuracy", recorded(formulas.categorical_accuracy))
SparseCategoricalAccuracy = _class("SparseCategoricalAccuracy", recorded(formulas.sparse_categorical_accuracy))
_top = recorded(formulas.top_k_categorical_accuracy)
_sparse_top = recorded(formulas.sparse_top_k_categorical_accuracy)
TopKCategoricalAccuracy = _class("TopKCategoricalAccuracy", _top, "top_k_categorical_accuracy")
SparseTopKCategoricalAccuracy = _class(
    "SparseTopKCategoricalAccuracy", _sparse_top, "sparse_top_k_categorical_accuracy"
)  # fmt: skip
MeanSquaredError = _class("MeanSquaredError", recorded(formulas.mean_squared_error))
MeanAbsoluteError = _class("MeanAbsoluteError", recorded(formulas.mean_absolute_error))
MeanAbsolutePercentageError = _class(
    "MeanAbsolutePercentageError", recorded(formulas.mean_absolute_percentage_error)
)  # fmt: skip
BinaryCrossentropy = _class("BinaryCrossentropy", losses.binary_crossentropy)
CategoricalCrossentropy = _class("CategoricalCrossentropy", losses.categorical_crossentropy)
SparseCategoricalCrossentropy = _class("SparseCategoricalCrossentropy", losses.sparse_categorical_crossentropy)
Hinge = _class("Hinge", recorded(formulas.hinge))
KLDivergence = _class("KLDivergence", recorded(formulas.kullback_leibler_divergence), "kullback_leibler_divergence")
Poisson = _class("Poisson", recorded(formulas.poisson))


class RootMeanSquaredError(_Streaming):
    """The root of the mean of squared differences."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds a batch."""
        y_true = recorded(math.cast)(convert(y_true), "float32")
        return self._found(streaming.root_mean_squared_error(y_true, y_pred, sample_weight, name=self.name))


class _Counted(_Streaming):
    """A metric of two classes: a prediction above the threshold is positive."""

    metric: Callable[..., Any]

    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self._threshold = 0.5 if thresholds is None else float(thresholds)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds a batch."""
        positive = recorded(math.greater)(y_pred, self._threshold)
        truth = recorded(math.cast)(convert(y_true), "bool")
        return self._found(type(self).metric(truth, positive, sample_weight, name=self.name))


def _counted(title: str, metric: Callable[..., Any]) -> type[_Counted]:
    more = {"metric": staticmethod(metric), "__doc__": metric.__doc__, "__module__": __name__}
    return type(title, (_Counted,), more)


Precision = _counted("Precision", streaming.precision)
Recall = _counted("Recall", streaming.recall)
TruePositives = _counted("TruePositives", streaming.true_positives)
TrueNegatives = _counted("TrueNegatives", streaming.true_negatives)
FalsePositives = _counted("FalsePositives", streaming.false_positives)
FalseNegatives = _counted("FalseNegatives", streaming.false_negatives)


class AUC(_Streaming):
    """The area under the ROC curve, or under that of precision and recall."""

    def __init__(
        self, num_thresholds: int = 200, curve: str = "ROC", name: str | None = None, dtype: Any = None
    ) -> None:  # fmt: skip
        super().__init__(name, dtype)
        self._count, self._curve = num_thresholds, curve

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds a batch."""
        truth = recorded(math.cast)(convert(y_true), "bool")
        found = streaming.auc(
            truth, y_pred, sample_weight, num_thresholds=self._count, curve=self._curve, name=self.name
        )  # fmt: skip
        return self._found(found)


class MeanIoU(_Streaming):
    """The mean over classes of intersection over union."""

    def __init__(self, num_classes: int, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name, dtype)
        self._count = num_classes

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the operation that adds a batch."""
        return self._found(streaming.mean_iou(y_true, y_pred, self._count, sample_weight, name=self.name))


categorical_crossentropy = losses.categorical_crossentropy
sparse_categorical_crossentropy = losses.sparse_categorical_crossentropy
binary_crossentropy = losses.binary_crossentropy


def get(identifier: Any) -> Any:
    """A metric by its name, or as it is.

    Raises:
      ValueError: there is none of this name.
    """
    if callable(identifier) or identifier is None or isinstance(identifier, Metric):
        return identifier
    name = str(identifier)
    found = TABLE.get(f"tf.keras.metrics.{name}")
    if found is not None:
        return recorder(found)
    if isinstance(globals().get(name), type):
        return globals()[name]()
    try:
        return losses.get(name)
    except ValueError:
        raise ValueError(f"Unknown metric function: {name}") from None


def name_of(metric: Any) -> str:
    """What it is called in logs."""
    return str(getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__))
