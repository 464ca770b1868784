"""Crossentropies of probabilities that know their logits; see `eager.logits`.

Keras's backend for TensorFlow keeps the logits as an attribute of the probabilities. Arrays that JAX traces take no
attributes, so they are kept beside them here.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from trainband.compat.ops.cross_entropy import softmax_cross_entropy
from trainband.compat.tf2.eager.logits import ANY, Logits
from trainband.compat.tf2.keras.inside import JAXTrainer, backend_module

_KNOWN: dict[int, tuple[weakref.ref[Any], Logits]] = {}
"""The logits of arrays, by the identity of these while they live."""


def remember_array(array: Any, logits: Logits | None) -> None:
    """Note the logits of an array of probabilities, or that they are not to be found."""
    key = id(array)
    if logits is None:
        _KNOWN.pop(key, None)
        return
    _KNOWN[key] = (weakref.ref(array, lambda _: _KNOWN.pop(key, None)), logits)


def logits_of_array(array: Any) -> Logits | None:
    """Return the logits that an array was computed from, where they are known."""
    found = _KNOWN.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def _activation(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def activate(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(x, *args, **kwargs)
        if found is not x:
            remember_array(found, Logits(x, ANY))
        return found

    return activate


def _crossentropy(original: Callable[..., Any], operation: str) -> Callable[..., Any]:
    name = original.__name__

    @functools.wraps(original)
    def crossentropy(target: Any, output: Any, from_logits: bool = False, **axis: Any) -> Any:
        logits = logits_of_array(output)
        if logits is not None and logits.operation in (ANY, operation):
            if from_logits:
                warnings.warn(
                    f'"`{name}` received `from_logits=True`, but the `output` argument was produced by a {operation} '
                    "activation and thus does not represent logits. Was this intended?",
                    stacklevel=2,
                )
            output, from_logits = logits.value, True
        if from_logits and name == "categorical_crossentropy" and target.shape == output.shape:
            return softmax_cross_entropy(target, output, **axis)  # whose derivative is that of TensorFlow's kernel
        return original(target, output, from_logits=from_logits, **axis)

    return crossentropy


@jax.tree_util.register_dataclass
@dataclass
class _Predictions:
    """The predictions of a step, as they come out of its derivative: with the logits of the leaves that have some."""

    leaves: list[Any]
    logits: dict[int, Any]
    structure: Any = field(metadata={"static": True})
    operations: tuple[str, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, y_pred: Any) -> _Predictions:
        leaves, structure = jax.tree.flatten(y_pred)
        found = {at: logits for at, one in enumerate(leaves) if (logits := logits_of_array(one)) is not None}
        values = {at: one.value for at, one in found.items()}
        return cls(leaves, values, structure, tuple(one.operation for one in found.values()))

    def unpacked(self) -> Any:
        for (at, value), operation in zip(self.logits.items(), self.operations, strict=True):
            remember_array(self.leaves[at], Logits(value, operation))
        return jax.tree.unflatten(self.structure, self.leaves)


def _with_logits(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def losses_and_updates(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss, (unscaled, y_pred, others, metrics) = original(self, *args, **kwargs)
        return loss, (unscaled, _Predictions.of(y_pred), others, metrics)

    return losses_and_updates


def _from_logits(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def metrics_after(self: Any, metrics: Any, loss: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        given = y_pred.unpacked() if isinstance(y_pred, _Predictions) else y_pred
        return original(self, metrics, loss, x, y, given, sample_weight)

    return metrics_after


def install() -> None:
    """Has Keras's backend find logits as its backend for TensorFlow does."""
    nn = backend_module.nn
    for name in ("sigmoid", "softmax"):
        setattr(nn, name, _activation(getattr(nn, name)))
    for name, operation in (
        ("binary_crossentropy", "Sigmoid"),
        ("categorical_crossentropy", "Softmax"),
        ("sparse_categorical_crossentropy", "Softmax"),
    ):
        setattr(nn, name, _crossentropy(getattr(nn, name), operation))
    JAXTrainer.compute_loss_and_updates = _with_logits(JAXTrainer.compute_loss_and_updates)
    JAXTrainer._update_metrics_variables = _from_logits(JAXTrainer._update_metrics_variables)  # noqa: SLF001
