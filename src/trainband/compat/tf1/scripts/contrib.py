"""The few names of `tf.contrib` that training scripts use everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import math, reductions
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.operations.initializers import Initializer, VarianceScaling
from trainband.compat.tf1.operations.recorder import recorded

Regularizer = Callable[[Any], "Tensor | None"]


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = "float32") -> Initializer:
    """Glorot and Bengio's."""
    return VarianceScaling(1.0, "fan_avg", "uniform" if uniform else "truncated_normal", seed, dtype)


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = "float32",
) -> Initializer:
    """He's, and its relatives."""
    return VarianceScaling(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed, dtype)


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times half the sum of squares; nothing where it is 0."""
    del scope
    return _scaled(scale, recorded(reductions.l2_loss), "l2_regularizer")


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times the sum of absolute values; nothing where it is 0."""
    del scope
    total, absolute = recorded(reductions.reduce_sum), recorded(math.abs_)
    return _scaled(scale, lambda weights: total(absolute(weights)), "l1_regularizer")


def _scaled(scale: float, penalty: Callable[[Any], Any], name: str) -> Regularizer:
    multiply = recorded(math.multiply)
    return lambda weights: None if scale == 0 else multiply(penalty(weights), scale, name=name)
