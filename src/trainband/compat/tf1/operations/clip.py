"""Clip several tensors by their global norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import clipping
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.slices import IndexedSlices
from trainband.compat.tf1.operations.recorder import recorded


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the Euclidean norm of several tensors together, ignoring `None`."""
    return recorded(clipping.global_norm)([_values(one) for one in t_list if one is not None], name=name)  # type: ignore[no-any-return]


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Any]:
    """Scale tensors down so that their global norm is at most `clip_norm`; return them and the norm before."""
    norm = global_norm(t_list) if use_norm is None else use_norm
    record = recorded(clipping.scaled_to_norm)

    def clipped(one: Any) -> Any:
        if one is None:
            return None
        scaled = record(_values(one), norm, clip_norm, name=name)
        return IndexedSlices(scaled, one.indices, one.dense_shape) if isinstance(one, IndexedSlices) else scaled

    return [clipped(one) for one in t_list], norm


def _values(one: Any) -> Any:
    return one.values if isinstance(one, IndexedSlices) else one
