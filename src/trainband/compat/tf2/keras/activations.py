"""Functions of a script's that Keras's layers call: activations, regularizers, constraints and initial values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.tf2.keras.inside import activations_module, keras
from trainband.compat.tf2.keras.lifting import is_keras_own, lifted, of_tensors, plain, token

_KNOWN = "elu gelu relu relu6 selu sigmoid silu softmax softplus softsign tanh log_softmax leaky_relu".split()


def _of_keras(value: Any) -> bool:
    return not callable(value) or str(getattr(value, "__module__", "")).startswith("keras.")


def _getting(original: Callable[..., Any]) -> Callable[..., Any]:
    def get(identifier: Any) -> Any:
        if isinstance(identifier, str | dict) or _of_keras(identifier) or isinstance(identifier, keras.Layer):
            return original(identifier)
        name = getattr(identifier, "__name__", "")
        if name in _KNOWN and str(identifier.__module__).startswith("trainband."):
            return original(name)
        found = original(identifier)
        return of_tensors(found) if callable(found) and not isinstance(found, type) else found

    return get


def _regularizing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, x: Any) -> Any:
        if is_keras_own([x]):
            return original(self, *plain([x]))
        return lifted(("regularizer", token(self)), lambda _, given: original(self, *given), [], (x,))

    return call


def install() -> None:
    """Has Keras take functions of tensors."""
    activations_module.get = _getting(activations_module.get)
    keras.activations.get = activations_module.get
    for name in ("L1", "L2", "L1L2", "OrthogonalRegularizer"):
        kind = getattr(keras.regularizers, name)
        kind.__call__ = _regularizing(kind.__call__)
