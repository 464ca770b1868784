"""Axes and sizes in another order of the axes, such as NCHW."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops.arrays import ArgumentError, numpy_or_jax
from trainband.compat.ops.table import op


@op("tf.raw_ops.DataFormatDimMap", type="DataFormatDimMap", tensors="x", folds=True, kinds={"x": "int"},
    v1="x src_format dst_format name")  # fmt: skip
def data_format_dim_map(x: Any, src_format: str = "NHWC", dst_format: str = "NCHW") -> Any:
    """The numbers of axes of one order, in another."""
    places = np.array([dst_format.index(one) for one in src_format], x.dtype)
    return numpy_or_jax(x).take(places, x % len(src_format))


@op("tf.raw_ops.DataFormatVecPermute", type="DataFormatVecPermute", tensors="x", folds=True, kinds={"x": "int"},
    v1="x src_format dst_format name")  # fmt: skip
def data_format_vec_permute(x: Any, src_format: str = "NHWC", dst_format: str = "NCHW") -> Any:
    """Sizes, or rows, of axes of one order, in another."""
    if x.shape[0] != len(src_format):
        raise ArgumentError(
            f"x must have {len(src_format)} sizes, or rows, for {src_format}, but its shape is {x.shape}"
        )
    return numpy_or_jax(x).take(x, np.array([src_format.index(one) for one in dst_format]), 0)
