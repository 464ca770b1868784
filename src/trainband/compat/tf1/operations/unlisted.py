"""Operations that only TensorFlow's own modules have, under names that were never public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainband.compat.ops import activations, array, cross_entropy, indexing, pooling, random
from trainband.compat.ops.table import TABLE
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations.recorder import record_op, recorded, recorder

nth_element = recorded(indexing.nth_element)
parameterized_truncated_normal = recorded(random.parameterized_truncated_normal)


def max_pool_v2(
    input: Any,  # noqa: A002 - TensorFlow's name
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """The largest number in each window."""
    found: Tensor = recorded(pooling.max_pool)(input, ksize, strides, padding, data_format, name)
    return found


def _with_derivative(function: Callable[..., Any], title: str, *, by_number: bool) -> Callable[..., Any]:
    """A cross-entropy of each row, and its derivative by the row."""

    def record_it(features: Any, labels: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
        logits = convert(features)
        given = convert(labels) if by_number else convert(labels, logits.dtype)
        if logits.shape.ndims not in (None, 2) or given.shape.ndims not in (None, 1 if by_number else 2):
            raise ValueError(
                f"{title}: logits must be 2-D but have the shape {logits.shape}, labels must be "
                f"{1 if by_number else 2}-D but have the shape {given.shape}"
            )
        loss: Tensor = recorded(function)(labels=given, logits=logits, name=name or title)
        wanted = recorded(indexing.one_hot)(given, recorded(array.shape)(logits)[-1], dtype=logits.dtype)
        return loss, recorded(activations.softmax)(logits) - (wanted if by_number else given)

    record_it.__doc__ = f"TensorFlow's {title}: the cross-entropy of each row, and its derivative by the row."
    return record_it


softmax_cross_entropy_with_logits = _with_derivative(
    cross_entropy.softmax_cross_entropy_of_constants, "SoftmaxCrossEntropyWithLogits", by_number=False
)
sparse_softmax_cross_entropy_with_logits = _with_derivative(
    cross_entropy.sparse_softmax_cross_entropy, "SparseSoftmaxCrossEntropyWithLogits", by_number=True
)


def scatter_nd_non_aliasing_add(input: Any, indices: Any, updates: Any, name: str | None = None) -> Tensor:  # noqa: A002
    """An array with something added at some places."""
    found: Tensor = recorder(TABLE["tf.tensor_scatter_nd_add"])(input, indices, updates, name=name)
    return found


def _with_num_segments(name: str) -> Callable[..., Tensor]:
    op = TABLE[f"tf.{name}"]

    def record_it(data: Any, indices: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        arguments = {"data": data, "indices": indices, "segment_ids": segment_ids, "num_segments": num_segments}
        found: Tensor = record_op(op, arguments, name)
        return found

    record_it.__doc__ = f"`tf.{name}` with a number of segments."
    return record_it


sparse_segment_sum_with_num_segments = _with_num_segments("sparse_segment_sum")
sparse_segment_mean_with_num_segments = _with_num_segments("sparse_segment_mean")
sparse_segment_sqrt_n_with_num_segments = _with_num_segments("sparse_segment_sqrt_n")
