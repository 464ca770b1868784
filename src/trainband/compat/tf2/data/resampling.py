"""Rejection sampling: a dataset with another distribution of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops.table import TABLE
from trainband.compat.tf2.eager.execute import cast_to, function_of

_SMOOTHING = 10.0
"""How often each class counts as seen before the first element, as in TensorFlow."""


def rejection_resampled(
    dataset: Any, class_func: Callable[..., Any], target_dist: Any, initial_dist: Any, seed: Any
) -> Any:
    """(class, element) of the elements that are kept so that the classes are distributed as wanted."""
    op = {name: function_of(TABLE[f"tf.{name}"]) for name in ("one_hot", "reduce_sum", "reduce_max", "gather")}
    quotient, uniform = function_of(TABLE["tf.math.divide_no_nan"]), function_of(TABLE["tf.random.uniform"])
    wanted = np.asarray(target_dist, np.float32)
    first = (
        np.full(len(wanted), _SMOOTHING, np.float32) if initial_dist is None else np.asarray(initial_dist, np.float32)
    )

    def with_share(seen: Any, *element: Any) -> Any:
        kind = cast_to(class_func(*element), "int32")
        if initial_dist is None:
            seen = seen + op["one_hot"](kind, len(wanted))
        ratios = quotient(wanted, seen / op["reduce_sum"](seen))
        share = op["gather"](ratios / op["reduce_max"](ratios), kind)
        return seen, (kind, element[0] if len(element) == 1 else element, share)

    def is_kept(_kind: Any, _element: Any, share: Any) -> Any:
        return uniform([], seed=seed) < share

    return dataset.scan(first, with_share).filter(is_kept).map(lambda kind, element, _: (kind, element))
