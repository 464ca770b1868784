"""What scripts say of the features of an `Example`: their kinds, shapes and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trainband.compat.ops.dtypes import DType, array_of, as_dtype, float32, int64, string
from trainband.compat.ops.shapes import TensorShape

KINDS = {float32: "float_list", int64: "int64_list", string: "bytes_list"}
"""The dtypes that features can have, and the lists that hold them."""


class FixedLenFeature(NamedTuple):
    """A feature of one shape; without a default it must be there."""

    shape: Any
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values."""

    dtype: Any


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of values of one shape."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class SparseFeature(NamedTuple):
    """A sparse vector, or matrix, whose places and values are two features, or more."""

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False


def checked(features: Mapping[str, Any] | None) -> dict[str, Any]:
    """The features, in order of their names.

    Raises:
      ValueError: there are none, or one is not complete.
      TypeError: one is of no kind that there is, or of a dtype that features cannot have.
    """
    if not features:
        raise ValueError("Missing: features was None or empty.")
    kinds = (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature, SparseFeature)
    for key, feature in features.items():
        if not isinstance(feature, kinds):
            raise TypeError(f"Invalid feature {key}:{feature}.")
        if feature.dtype is None:
            raise ValueError(f"Missing type for feature {key}.")
        if as_dtype(feature.dtype) not in KINDS:
            raise TypeError(f"Feature {key} is of {as_dtype(feature.dtype).name}; it can be float32, int64 or string.")
        if isinstance(feature, FixedLenFeature | FixedLenSequenceFeature) and feature.shape is None:
            raise ValueError(f"Missing shape for feature {key}.")
        if isinstance(feature, FixedLenFeature) and not TensorShape(feature.shape).is_fully_defined():
            raise ValueError(
                f"All dimensions of shape for feature {key} need to be known but received {feature.shape}."
            )
    return {key: features[key] for key in sorted(features)}


def default_of(feature: Any) -> np.ndarray[Any, Any] | None:
    """What stands for a feature that is missing; `None` where it must be there.

    Raises:
      ValueError: it does not have the feature's shape.
    """
    if feature.default_value is None:
        return None
    value = array_of(feature.default_value, as_dtype(feature.dtype))
    shape = tuple(size or 0 for size in TensorShape(feature.shape).as_list())
    if isinstance(feature, FixedLenFeature) and value.shape != shape:
        if value.size not in (1, int(np.prod(shape))):
            raise ValueError(f"The default value has shape {value.shape}, the feature {shape}.")
        value = np.broadcast_to(value, shape) if value.size == 1 else value.reshape(shape)
    return value


def kind_of(feature: Any) -> DType:
    """Its dtype."""
    return as_dtype(feature.dtype)
