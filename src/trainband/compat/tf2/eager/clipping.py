"""Clipping of several tensors by what they are together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainband.compat.ops import clipping, math, reductions
from trainband.compat.ops.table import op_of
from trainband.compat.tf2.eager.execute import convert, function_of
from trainband.compat.tf2.eager.tensor import Tensor


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The root of the sum of the squares of all elements."""
    del name
    square, total = function_of(op_of(math.square)), function_of(op_of(reductions.reduce_sum))
    parts = [total(square(one)) for one in t_list if one is not None]
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    result: Tensor = function_of(op_of(math.sqrt))(found)
    return result


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """The tensors, scaled down where their global norm is larger, and that norm."""
    del name
    norm = global_norm(t_list) if use_norm is None else convert(use_norm)
    clip = function_of(op_of(clipping.scaled_to_norm))
    return [None if one is None else clip(convert(one), norm, clip_norm) for one in t_list], norm
