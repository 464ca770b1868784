"""Targets of rank 1 beside predictions of rank 2, in the losses of a compiled model, as Keras 2 compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from trainband.compat.tf2.keras.inside import CompileLoss, keras


def _as_column(target: Any, prediction: Any) -> Any:
    ranks = len(getattr(target, "shape", ())), len(getattr(prediction, "shape", ()))
    return keras.ops.expand_dims(target, -1) if ranks == (1, 2) and prediction.shape[-1] != 1 else target


def _columns(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        kinds: list[Any] = [jax.tree.structure(y_true), jax.tree.structure(y_pred)]
        if kinds[0] == kinds[1]:
            y_true = jax.tree.map(_as_column, y_true, y_pred)
        return original(self, y_true, y_pred, sample_weight)

    return call


def install() -> None:
    """Has the losses of compiled models do so."""
    CompileLoss.call = _columns(CompileLoss.call)
