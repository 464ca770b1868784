"""Pooling over windows of random sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.ops import fractional_pooling
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert, name_scope
from trainband.compat.tf1.operations.recorder import recorded


def _pooling(title: str, pool: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def call(
        value: Any,
        pooling_ratio: Any,
        pseudo_random: bool = False,
        overlapping: bool = False,
        deterministic: bool = False,
        seed: int = 0,
        seed2: int = 0,
        name: str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ratio = [float(one) for one in np.ravel(pooling_ratio)]
        by = ratio * 2 if len(ratio) == 1 else ratio[1:3] if len(ratio) == 4 else ratio
        seeds = [seed + i * (seed2 or 1) if seed or seed2 else None for i in range(2)]
        with name_scope(name, title, None) as scope:
            images = convert(value)
            draw = recorded(fractional_pooling.pooling_sequence)
            ends = [
                draw(images, i + 1, by[i], bool(pseudo_random), seeds[i] if deterministic else None, seed=seeds[i])
                for i in range(2)
            ]
            return recorded(pool)(images, *ends, bool(overlapping), name=scope), ends[0], ends[1]

    call.__name__ = call.__qualname__ = pool.__name__
    call.__doc__ = f"TensorFlow's {title} of windows of random sizes, and where those begin along both axes."
    return call


fractional_max_pool = _pooling("FractionalMaxPool", fractional_pooling.fractional_max_pool)
fractional_avg_pool = _pooling("FractionalAvgPool", fractional_pooling.fractional_avg_pool)
