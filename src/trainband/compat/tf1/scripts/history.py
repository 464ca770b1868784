"""Names of TensorFlow 0.x, its version, and helpers for text."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.ops import array, math, matrices
from trainband.compat.ops.shapes import Dimension
from trainband.compat.tf1.graphs.graph_keys import GraphKeys
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.operations import summary
from trainband.compat.tf1.operations.operators import slice_item
from trainband.compat.tf1.operations.recorder import recorded
from trainband.compat.tf1.operations.variable_scope import variable_scope
from trainband.compat.tf1.protos.version import GIT_VERSION as GIT_VERSION
from trainband.compat.tf1.protos.version import VERSION as VERSION

COMPILER_VERSION = "XLA"
newaxis = None
"""A new axis in an index."""

CXX11_ABI_FLAG = 1
MONOLITHIC_BUILD = 0
GRAPH_DEF_VERSION = 134
GRAPH_DEF_VERSION_MIN_CONSUMER = 0
GRAPH_DEF_VERSION_MIN_PRODUCER = 0
QUANTIZED_DTYPES: frozenset[Any] = frozenset()
bytes_or_text_types = (bytes, str)
integral_types = (int, np.integer)
real_types = (int, float, np.integer, np.floating)
complex_types = (int, float, complex, np.number)

merge_all_summaries = summary.merge_all


def merge_summary(inputs: Any, collections: Any = None, name: str | None = None) -> Any:
    """`tf.summary.merge`, as it was called."""
    return summary.merge(inputs, collections, name)


def scalar_summary(tags: Any, values: Any, collections: Any = None, name: str | None = None) -> Any:
    """`tf.summary.scalar`, as it was called: with one tag, or with as many as there are values."""
    if not isinstance(tags, str) and len(tags) > 1:
        numbers = convert(values)
        several = [summary.scalar(str(tag), slice_item(numbers, i), []) for i, tag in enumerate(tags)]
        return summary.merge(several, [GraphKeys.SUMMARIES] if collections is None else collections, name)
    return summary.scalar(_tag(tags), values, collections)


def histogram_summary(tag: Any, values: Any, collections: Any = None, name: str | None = None) -> Any:
    """`tf.summary.histogram`, as it was called."""
    del name
    return summary.histogram(_tag(tag), values, collections)


def audio_summary(
    tag: Any, tensor: Any, sample_rate: Any, max_outputs: int = 3, collections: Any = None, name: str | None = None
) -> Any:
    """`tf.summary.audio`, as it was called."""
    del name
    return summary.audio(_tag(tag), tensor, sample_rate, max_outputs, collections)


def _tag(tags: Any) -> str:
    """The one tag of a list, or a string itself."""
    (tag,) = [tags] if isinstance(tags, str) else tags
    return str(tag)


def image_summary(tag: str, tensor: Any, max_images: int = 3, collections: Any = None, name: str | None = None) -> Any:
    """`tf.summary.image`, as it was called."""
    del name
    return summary.image(tag, tensor, max_images, collections)


def dimension_at_index(shape: Any, index: int) -> Any:
    """One `Dimension` of a shape; unknown where the rank is."""
    return Dimension(None) if shape.ndims is None else shape.dims[index]


def variable_op_scope(values: Any, name_or_scope: Any, default_name: str | None = None, **more: Any) -> Any:
    """`tf.variable_scope`, as it was called."""
    return variable_scope(name_or_scope, default_name, values, **more)


inv = recorded(math.reciprocal)
complex_abs = recorded(math.abs_)


def batch_matmul(
    x: Any, y: Any, adj_x: bool = False, adj_y: bool = False, name: str | None = None, **keywords: Any
) -> Any:
    """`tf.matmul`, as it was called for several matrices."""
    return recorded(matrices.matmul)(x, y, adjoint_a=adj_x, adjoint_b=adj_y, name=name, **keywords)


def reverse(tensor: Any, axis: Any = None, name: str | None = None, *, dims: Any = None) -> Any:
    """`tf.reverse`; for TensorFlow 0.x, the axes may be given by a truth value for each."""
    axes = dims if axis is None else axis
    flags = np.asarray(axes) if isinstance(axes, list | tuple | np.ndarray) else None
    if flags is not None and flags.dtype == bool:
        axes = np.flatnonzero(flags).tolist()
    return recorded(array.reverse)(tensor, axes, name=name)
