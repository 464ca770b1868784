"""Initializers, regularizers, activations and constraints, by the names that `tf.keras` gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainband.compat.ops import activations as formulas
from trainband.compat.ops import array, clipping, indexing, math, reductions
from trainband.compat.ops.dtypes import float32
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations import initializers as first
from trainband.compat.tf1.operations.recorder import recorded

_sum, _abs, _square, _sqrt = map(recorded, (reductions.reduce_sum, math.abs_, math.square, math.sqrt))
_clip, _maximum = recorded(clipping.clip_by_value), recorded(math.maximum)

# --- initializers


class RandomNormal(first.RandomNormal):
    """Normally distributed."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(mean, stddev, seed, dtype)


class TruncatedNormal(first.TruncatedNormal):
    """Normally distributed, cut off at two standard deviations."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(mean, stddev, seed, dtype)


_INITIALIZERS: dict[str, Callable[..., Any]] = {
    "zeros": first.Zeros,
    "zero": first.Zeros,
    "ones": first.Ones,
    "one": first.Ones,
    "constant": first.Constant,
    "random_normal": RandomNormal,
    "normal": RandomNormal,
    "truncated_normal": TruncatedNormal,
    "random_uniform": first.RandomUniform,
    "uniform": first.RandomUniform,
    "variance_scaling": first.VarianceScaling,
    "glorot_uniform": first.GlorotUniform,
    "glorot_normal": first.GlorotNormal,
    "orthogonal": first.Orthogonal,
    "identity": first.Identity,
    "he_normal": first.he_normal,
    "he_uniform": first.he_uniform,
    "lecun_normal": first.lecun_normal,
    "lecun_uniform": first.lecun_uniform,
}

# --- regularizers


class L1L2:
    """The sums of absolute values and of squares, times a factor each."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1, self.l2 = float(l1), float(l2)

    def __call__(self, x: Any) -> Any:
        """What it adds to the loss."""
        terms = []
        if self.l1:
            terms.append(_sum(_abs(x)) * self.l1)
        if self.l2:
            terms.append(_sum(_square(x)) * self.l2)
        return sum(terms[1:], terms[0]) if terms else convert(0.0, float32)

    def get_config(self) -> dict[str, float]:
        """Its factors."""
        return {"l1": self.l1, "l2": self.l2}


def l1(l: float = 0.01) -> L1L2:  # noqa: E741 - Keras's name
    """The sum of absolute values, times a factor."""
    return L1L2(l1=l)


def l2(l: float = 0.01) -> L1L2:  # noqa: E741 - Keras's name
    """The sum of squares, times a factor."""
    return L1L2(l2=l)


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    """Both."""
    return L1L2(l1, l2)


# --- constraints


def _norms(w: Any, axis: Any) -> Any:
    return _sqrt(_sum(_square(w), axis, keepdims=True))


class MaxNorm:
    """No norm is above a limit."""

    def __init__(self, max_value: float = 2, axis: Any = 0) -> None:
        self.max_value, self.axis = max_value, axis

    def __call__(self, w: Any) -> Any:
        """The nearest allowed value."""
        norms = _norms(w, self.axis)
        return w * (_clip(norms, 0.0, float(self.max_value)) / (norms + 1e-7))


class UnitNorm:
    """All norms are 1."""

    def __init__(self, axis: Any = 0) -> None:
        self.axis = axis

    def __call__(self, w: Any) -> Any:
        """The nearest allowed value."""
        return w / (_norms(w, self.axis) + 1e-7)


class MinMaxNorm:
    """Norms are between two limits; `rate` says how far a step goes towards that."""

    def __init__(self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: Any = 0) -> None:
        self.min_value, self.max_value, self.rate, self.axis = min_value, max_value, rate, axis

    def __call__(self, w: Any) -> Any:
        """A value nearer to what is allowed."""
        norms = _norms(w, self.axis)
        wanted = _clip(norms, float(self.min_value), float(self.max_value)) * self.rate + norms * (1 - self.rate)
        return w * (wanted / (norms + 1e-7))


class NonNeg:
    """Nothing is negative."""

    def __call__(self, w: Any) -> Any:
        """The nearest allowed value."""
        return _maximum(w, 0.0)


_CONSTRAINTS = {"max_norm": MaxNorm, "unit_norm": UnitNorm, "min_max_norm": MinMaxNorm, "non_neg": NonNeg}

# --- activations


def linear(x: Any) -> Any:
    """The same."""
    return x


def hard_sigmoid(x: Any) -> Any:
    """Three straight lines that resemble the sigmoid."""
    return _clip(recorded(math.add)(recorded(math.multiply)(x, 0.2), 0.5), 0.0, 1.0)


def relu(x: Any, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0) -> Any:
    """The positive part; `alpha` times what is below the threshold, and no more than `max_value`."""
    if not alpha and max_value is None and not threshold:
        return recorded(formulas.relu)(x)
    x = convert(x)
    above = recorded(math.cast)(recorded(math.greater)(x, float(threshold)), x.dtype)
    positive = above * x if max_value is None else recorded(math.minimum)(above * x, float(max_value))
    return positive if not alpha else positive + (1.0 - above) * alpha * (x - threshold)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """Exponential below zero."""
    if alpha == 1:
        return recorded(formulas.elu)(x)
    x = convert(x)
    found = recorded(formulas.elu)(x)
    return recorded(indexing.where)(recorded(math.greater)(x, 0.0), found, recorded(math.multiply)(found, alpha))


def softmax(x: Any, axis: int = -1) -> Any:
    """Probabilities.

    Raises:
      ValueError: there is only one axis.
    """
    if convert(x).shape.ndims == 1:
        raise ValueError(f"Cannot apply softmax to a tensor that is 1D: {x}")
    return recorded(formulas.softmax)(x, axis)


selu, softplus, softsign, swish = map(
    recorded, (formulas.selu, formulas.softplus, formulas.softsign, formulas.swish)
)  # fmt: skip
tanh, sigmoid, exponential = map(recorded, (math.tanh, math.sigmoid, math.exp))
_ACTIVATIONS = {
    "linear": linear,
    "hard_sigmoid": hard_sigmoid,
    "relu": relu,
    "relu6": recorded(formulas.relu6),
    "elu": elu,
    "softmax": softmax,
    "selu": selu,
    "softplus": softplus,
    "softsign": softsign,
    "swish": swish,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "exponential": exponential,
    "identity": recorded(array.identity),
}

# --- by name


def snake_case(name: str) -> str:
    """`GlorotUniform` as `glorot_uniform`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


_own: dict[str, Any] = {}


def get_custom_objects() -> dict[str, Any]:
    """The script's own functions that are known by name, to which it may add."""
    return _own


@contextmanager
def known(*objects: Mapping[str, Any]) -> Iterator[None]:
    """Makes the script's own functions known by name."""
    before = dict(_own)
    for one in objects:
        _own.update(one)
    try:
        yield
    finally:
        _own.clear()
        _own.update(before)


def _found(kind: str, table: Mapping[str, Any], given: Any) -> Any:
    if isinstance(given, str) and given in _own:
        return _own[given]
    name, settings = (given["class_name"], given.get("config", {})) if isinstance(given, Mapping) else (given, {})
    if not isinstance(name, str):
        return given
    made = table.get(name) or table.get(snake_case(name))
    if made is None:
        raise ValueError(f"Unknown {kind}: {name}. Expected one of: {', '.join(sorted(table))}.")
    return made(**settings)


def initializer_of(identifier: Any) -> Any:
    """An initializer by its name, or as it is."""
    found = _found("initializer", _INITIALIZERS, identifier)
    return found() if isinstance(found, type) else found


def regularizer_of(identifier: Any) -> Any:
    """A regularizer by its name, or as it is."""
    return _found("regularizer", {"l1": l1, "l2": l2, "l1_l2": l1_l2, "l1_l2_": L1L2}, identifier)


def constraint_of(identifier: Any) -> Any:
    """A constraint by its name, or as it is."""
    found = _found("constraint", _CONSTRAINTS, identifier)
    return found() if isinstance(found, type) else found


def activation_of(identifier: Any) -> Any:
    """An activation by its name, or as it is; `None` is the linear one.

    Raises:
      ValueError: there is none of this name.
    """
    if identifier is None:
        return linear
    if isinstance(identifier, str):
        if identifier in _own:
            return _own[identifier]
        if identifier not in _ACTIVATIONS:
            raise ValueError(f"Unknown activation: {identifier}. Expected one of: {', '.join(sorted(_ACTIVATIONS))}.")
        return _ACTIVATIONS[identifier]
    return identifier


def name_of(activation: Any) -> str | None:
    """The name of an activation; `None` if it is the script's own."""
    return next((name for name, one in _ACTIVATIONS.items() if one is activation), None)


OF_ARGUMENT = {
    "initializer": initializer_of,
    "regularizer": regularizer_of,
    "constraint": constraint_of,
    "activation": activation_of,
}
"""How an argument is read whose name ends so."""
