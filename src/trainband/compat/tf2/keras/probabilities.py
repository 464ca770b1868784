"""Losses of logits that are given probabilities.

A program may end a model in a softmax and yet make its loss with `from_logits=True`. Keras 2 then finds the logits
before the softmax, with a warning, so that the loss is that of the probabilities; here it is computed from them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import JAXTrainer, LossFunctionWrapper, keras
from trainband.compat.tf2.keras.variables import inside

_ENDINGS = {
    "sparse_categorical_crossentropy": "softmax",
    "categorical_crossentropy": "softmax",
    "binary_crossentropy": "sigmoid",
}
"""The losses of logits, and the activation whose results are the probabilities."""


def ending(layer: Any) -> str | None:
    """The activation that a layer, or a model, ends in; `None` where it is not known."""
    if isinstance(layer, keras.Sequential):
        return ending(layer.layers[-1]) if layer.layers else None
    if isinstance(layer, keras.Function):
        history = getattr(layer.outputs[0], "_keras_history", None) if len(layer.outputs) == 1 else None
        return None if history is None or history.operation is layer else ending(history.operation)
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    found = getattr(layer, "activation", None)
    name = getattr(found, "__name__", None)
    return name if name in ("softmax", "sigmoid") and getattr(keras.activations, name) is found else None


def of_probabilities(loss: Any, activation: str | None) -> Any:
    """The loss for what an activation gives: itself, or, if it is one of logits, its twin for probabilities."""
    if not isinstance(loss, LossFunctionWrapper) or activation is None:
        return loss
    settings = loss._fn_kwargs  # noqa: SLF001 - see `inside`
    name = getattr(loss.fn, "__name__", "")
    if not settings.get("from_logits") or _ENDINGS.get(name) != activation:
        return loss
    twin = loss.__dict__.get("_of_probabilities")
    if twin is None:
        warnings.warn(
            f'"`{name}` received `from_logits=True`, but the `output` argument was produced by a '
            f"{activation.capitalize()} activation and thus does not represent logits. Was this intended?",
            stacklevel=4,
        )
        twin = copy.copy(loss)
        twin.__dict__.pop("_trainband_number", None)
        twin._fn_kwargs = {**settings, "from_logits": False}  # noqa: SLF001 - see `inside`
        loss._of_probabilities = twin  # noqa: SLF001 - our own
    return twin


def _marking(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call, whose result knows the activation that it comes from."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        if isinstance(found, Tensor):
            found.activation = ending(self)
        return found

    return call


def _choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(y_pred, Tensor) and not inside():
            self = of_probabilities(self, getattr(y_pred, "activation", None))
        return original(self, y_true, y_pred, *args, **kwargs)

    return call


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_(self: Any, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(self, optimizer, of_probabilities(loss, ending(self)), *args, **kwargs)

    return compile_


def install() -> None:
    """Has models, layers and losses heed this."""
    keras.Layer.__call__ = _marking(keras.Layer.__call__)
    keras.losses.Loss.__call__ = _choosing(keras.losses.Loss.__call__)
    base = JAXTrainer.__mro__[1]
    base.compile = _compiling(base.compile)
