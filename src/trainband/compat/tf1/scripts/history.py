"""Names of TensorFlow 0.x, its version, and helpers for text."""

from __future__ import annotations

from typing import Any

from trainband.compat.tf1.operations import summary

VERSION = "1.15.5"
"""The version whose behaviour is kept."""
GIT_VERSION = "trainband"
COMPILER_VERSION = "XLA"
newaxis = None
"""A new axis in an index."""

merge_all_summaries = summary.merge_all
merge_summary = summary.merge
scalar_summary = summary.scalar
histogram_summary = summary.histogram


def image_summary(tag: str, tensor: Any, max_images: int = 3, collections: Any = None, name: str | None = None) -> Any:
    """`tf.summary.image`, as it was called."""
    del name
    return summary.image(tag, tensor, max_images, collections)


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    """Text as bytes."""
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes(bytes_or_text)


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    """Bytes as text."""
    return bytes_or_text.decode(encoding) if isinstance(bytes_or_text, bytes) else str(bytes_or_text)


as_str = as_text


def as_str_any(value: Any) -> str:
    """Anything as text."""
    return as_text(value) if isinstance(value, bytes) else str(value)
