"""Between the tensors that a script has and the arrays that stages pass on."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, string
from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.eager.execute import TENSORS, convert
from trainband.compat.tf2.eager.tensor import Tensor


def tensor_of(leaf: Any) -> Any:
    """The tensor, or dataset, of an array."""
    if leaf.dtype == object and leaf.ndim == 0 and hasattr(leaf.item(), "element_spec"):
        return leaf.item()
    return Tensor(leaf)


def array_from(value: Any) -> Any:
    """The array of what a script gives as a leaf.

    Raises:
      TypeError, ValueError: it cannot become a tensor.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        return value
    if hasattr(value, "element_spec"):
        return boxed(value)
    if value is None:
        raise ValueError("None values not supported in the elements of a dataset.")
    if TENSORS.is_tensor(value) or isinstance(value, list | tuple):
        found = np.asarray(convert(value).array)
    else:
        found = np.asarray(array_of(value))
    return array_of(found, string) if found.dtype.kind in "OUS" and not is_dataset(found) else found


def is_dataset(array: Any) -> bool:
    """Whether an array holds a dataset."""
    return array.dtype == object and array.ndim == 0 and hasattr(array.item(), "element_spec")


def boxed(value: Any) -> Any:
    """Anything as an array without axes."""
    box = np.empty((), object)
    box[()] = value
    return box


def number(value: Any, what: str) -> int:
    """A whole number that a script gives, which may be a tensor.

    Raises:
      TypeError: it is none.
    """
    found = np.asarray(convert(value).array)
    if found.ndim or found.dtype.kind not in "iu":
        raise TypeError(f"`{what}` must be a whole number, got {value!r}.")
    return int(found)


def positive(value: int, message: str) -> int:
    """A number that must be positive.

    Raises:
      InvalidArgumentError: it is not.
    """
    if value < 1:
        raise InvalidArgumentError(None, None, message)
    return value
