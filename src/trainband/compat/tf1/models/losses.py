"""`tf.keras.losses`: the cross entropies, the classes, and losses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainband.compat.ops import array, math, reductions
from trainband.compat.ops import keras_losses as formulas
from trainband.compat.ops.table import TABLE
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.models.named import snake_case
from trainband.compat.tf1.operations.recorder import recorded, recorder


def _as_logits(y_pred: Any, activation: str, from_logits: bool) -> tuple[Any, bool]:
    """What an activation was applied to, if it was; whether that are logits."""
    tensor = convert(y_pred)
    op = tensor.op
    while op.type == "Identity" and op.inputs:
        op = op.inputs[0].op
    if not from_logits and op.type == activation:
        return op.inputs[0], True
    return tensor, from_logits


def categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Any:
    """The cross entropy of class probabilities; from the logits, if the predictions come from a softmax."""
    p, is_logits = _as_logits(y_pred, "Softmax", from_logits)
    return recorded(formulas.categorical_cross_entropy)(y_true, p, is_logits, label_smoothing, axis)


def sparse_categorical_crossentropy(y_true: Any, y_pred: Any, from_logits: bool = False, axis: int = -1) -> Any:
    """The cross entropy of the numbers of classes; from the logits, if the predictions come from a softmax."""
    p, is_logits = _as_logits(y_pred, "Softmax", from_logits)
    return recorded(formulas.sparse_categorical_cross_entropy)(y_true, p, is_logits, axis)


def binary_crossentropy(y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0) -> Any:
    """The mean cross entropy of two classes; from the logits, if the predictions come from a sigmoid."""
    p, is_logits = _as_logits(y_pred, "Sigmoid", from_logits)
    return recorded(formulas.binary_cross_entropy)(y_true, p, is_logits, label_smoothing)


class Reduction:
    """How the losses of examples become one."""

    AUTO = "auto"
    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"


def weighted(losses: Any, weights: Any = None, reduction: str = Reduction.AUTO) -> Any:
    """Losses of examples times their weights, reduced: their mean, unless the reduction says otherwise."""
    if weights is not None:
        w = recorded(math.cast)(convert(weights), losses.dtype)
        while (w.shape.ndims or 0) > (losses.shape.ndims or 0) and w.shape.as_list()[-1] == 1:
            w = recorded(array.squeeze)(w, [-1])
        while w.shape.ndims and (w.shape.ndims or 0) < (losses.shape.ndims or 0):
            w = recorded(array.expand_dims)(w, -1)
        losses = losses * w
    if reduction == Reduction.NONE:
        return losses
    reduce = reductions.reduce_sum if reduction == Reduction.SUM else reductions.reduce_mean
    return recorded(reduce)(losses)


class Loss:
    """A loss of labels and predictions. Subclasses define `call`, which gives the losses of examples."""

    def __init__(self, reduction: str = Reduction.AUTO, name: str | None = None) -> None:
        self.reduction, self.name = reduction, name or snake_case(type(self).__name__)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The loss of a batch."""
        return weighted(convert(self.call(y_true, y_pred)), sample_weight, self.reduction)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The losses of examples."""
        raise NotImplementedError("Must be implemented in subclasses.")


class _Named(Loss):
    """A loss by a function, with settings for it."""

    function: Callable[..., Any]
    names: tuple[str, ...] = ()

    def __init__(self, *args: Any, reduction: str = Reduction.AUTO, name: str | None = None, **settings: Any) -> None:
        super().__init__(reduction, name)
        self._settings = {**dict(zip(self.names, args, strict=False)), **settings}

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The losses of examples."""
        return type(self).function(convert(y_true), convert(y_pred), **self._settings)


def _class(title: str, function: Callable[..., Any], *names: str) -> type[_Named]:
    more = {"function": staticmethod(function), "names": names, "__doc__": function.__doc__, "__module__": __name__}
    return type(title, (_Named,), more)


MeanSquaredError = _class("MeanSquaredError", recorded(formulas.mean_squared_error))
MeanAbsoluteError = _class("MeanAbsoluteError", recorded(formulas.mean_absolute_error))
MeanAbsolutePercentageError = _class(
    "MeanAbsolutePercentageError", recorded(formulas.mean_absolute_percentage_error)
)  # fmt: skip
MeanSquaredLogarithmicError = _class(
    "MeanSquaredLogarithmicError", recorded(formulas.mean_squared_logarithmic_error)
)  # fmt: skip
BinaryCrossentropy = _class("BinaryCrossentropy", binary_crossentropy, "from_logits", "label_smoothing")
CategoricalCrossentropy = _class("CategoricalCrossentropy", categorical_crossentropy, "from_logits", "label_smoothing")
SparseCategoricalCrossentropy = _class("SparseCategoricalCrossentropy", sparse_categorical_crossentropy, "from_logits")
Hinge = _class("Hinge", recorded(formulas.hinge))
SquaredHinge = _class("SquaredHinge", recorded(formulas.squared_hinge))
CategoricalHinge = _class("CategoricalHinge", recorded(formulas.categorical_hinge))
Poisson = _class("Poisson", recorded(formulas.poisson))
LogCosh = _class("LogCosh", recorded(formulas.logcosh))
KLDivergence = _class("KLDivergence", recorded(formulas.kullback_leibler_divergence))
CosineSimilarity = _class("CosineSimilarity", recorded(formulas.cosine_similarity))
Huber = _class("Huber", recorded(formulas.huber), "delta")


_OWN: dict[str, Callable[..., Any]] = {
    "categorical_crossentropy": categorical_crossentropy,
    "sparse_categorical_crossentropy": sparse_categorical_crossentropy,
    "binary_crossentropy": binary_crossentropy,
}


def get(identifier: Any) -> Any:
    """A loss by its name, or as it is.

    Raises:
      ValueError: there is none of this name.
    """
    if identifier is None or callable(identifier):
        return identifier
    if isinstance(identifier, Mapping):
        return globals()[identifier["class_name"]](**identifier.get("config", {}))
    name = str(identifier)
    if name in _OWN:
        return _OWN[name]
    found = TABLE.get(f"tf.keras.losses.{name}")
    if found is not None:
        return recorder(found)
    if isinstance(globals().get(name), type):
        return globals()[name]()
    raise ValueError(f"Unknown loss function: {name}")
