"""What a script's generator yields, as elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import array_of, string
from trainband.compat.tf1.datasets.elements import Elements, along, flatten
from trainband.compat.tf1.graphs.errors import InvalidArgumentError


def generated(values: Iterable[Any], structure: Any) -> Elements:
    """The elements that a generator's values stand for, copied: it may change its arrays afterwards.

    Raises:
      InvalidArgumentError: a value has another structure, dtype or shape than was declared.
    """
    specs = flatten(structure)
    for value in values:
        try:
            leaves = along(structure, value)
        except ValueError as exc:
            raise InvalidArgumentError(
                None,
                None,
                "`generator` yielded an element that did not match the expected structure. The expected structure was "
                f"{structure!r}, but the yielded element was {value!r}.",
            ) from exc
        element = []
        for leaf, spec in zip(leaves, specs, strict=True):
            try:
                array = array_of(leaf, string) if spec.dtype == string else np.array(leaf, spec.dtype.numpy)
            except (TypeError, ValueError) as exc:
                raise InvalidArgumentError(
                    None,
                    None,
                    "`generator` yielded an element that could not be converted to the expected type. The expected "
                    f"type was {spec.dtype.name}, but the yielded element was {leaf!r}.",
                ) from exc
            if not spec.shape.is_compatible_with(array.shape):
                raise InvalidArgumentError(
                    None,
                    None,
                    f"`generator` yielded an element of shape {array.shape} where an element of shape {spec.shape} was "
                    "expected.",
                )
            element.append(array)
        yield tuple(element)
