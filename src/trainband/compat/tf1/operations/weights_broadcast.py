"""Weights that are broadcast to values as losses and metrics allow it: each axis is whole, or 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops import array, math
from trainband.compat.tf1.graphs.graph import Operation, Tensor
from trainband.compat.tf1.graphs.record import convert, known_value
from trainband.compat.tf1.operations.control_flow import no_op
from trainband.compat.tf1.operations.printing import asserting
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.scripts.private import with_dependencies

_WHAT = "weights can not be broadcast to values."


def _fit(weights: Any, values: Any) -> bool:
    sizes, whole = np.ravel(weights), np.ravel(values)
    return not len(sizes) or (len(sizes) == len(whole) and bool(((sizes == 1) | (sizes == whole)).all()))


def assert_broadcastable(weights: Any, values: Any) -> Operation:
    """Demand that weights are a scalar, or have the values' number of axes with sizes that are theirs or 1.

    Raises:
      ValueError: it is known now that they are not.
    """
    given, wanted = (recorded(array.shape)(convert(one)) for one in (weights, values))
    known = [known_value(one) for one in (given, wanted)]
    if known[0] is not None and (not known[0].size or known[1] is not None):
        if known[1] is None or _fit(known[0], known[1]):
            return no_op("static_checks_determined_all_ok")
        raise ValueError(f"{_WHAT} weights shape {known[0].tolist()}, values shape {known[1].tolist()}.")
    ranks = [convert(one).shape.ndims for one in (weights, values)]
    if None not in ranks and ranks[0] not in (0, ranks[1]):
        raise ValueError(f"{_WHAT} values.rank={ranks[1]}. weights.rank={ranks[0]}.")
    return asserting("Assert", [given, wanted], lambda *sizes: np.bool_(_fit(*sizes)), None, _WHAT)


def broadcast_weights(weights: Any, values: Any) -> Tensor:
    """The weights in the shape of the values.

    Raises:
      ValueError: it is known now that they cannot be.
    """
    given, whole = convert(weights), convert(values)
    if given.shape.is_fully_defined() and whole.shape.is_fully_defined() and given.shape == whole.shape:
        return given
    check = assert_broadcastable(given, whole)
    found: Tensor = with_dependencies(
        [check], recorded(math.multiply)(given, recorded(array.ones_like)(whole, given.dtype))
    )
    return found
