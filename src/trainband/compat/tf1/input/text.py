"""Text as numbers of buckets, and in parts; `operations.strings` has the other operations on text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from trainband.compat.ops.dtypes import int64, string
from trainband.compat.tf1.graphs.graph import Tensor
from trainband.compat.tf1.graphs.record import convert
from trainband.compat.tf1.graphs.sparse import SparseTensor
from trainband.compat.tf1.input.hashes import fingerprint, old_hash, strong_hash
from trainband.compat.tf1.input.sparse import sparse
from trainband.compat.tf1.operations.strings import each


def string_to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Tensor:  # noqa: A002
    """A bucket for each text, by its fingerprint."""
    return each(
        "StringToHashBucketFast", lambda text: fingerprint(text) % num_buckets, [convert(input, string)], name, int64
    )


def string_to_hash_bucket_strong(
    input: Any,  # noqa: A002
    num_buckets: int,
    key: Any,
    name: str | None = None,
) -> Tensor:
    """A bucket for each text, by a hash that two secret numbers determine.

    Raises:
      ValueError: they are not two.
    """
    secrets = [int(one) for one in key]
    if len(secrets) != 2:
        raise ValueError(f"Key must have 2 elements, got {len(secrets)}.")
    return each(
        "StringToHashBucketStrong",
        lambda text: strong_hash(text, secrets) % num_buckets,
        [convert(input, string)],
        name,
        int64,
    )


def string_to_hash_bucket(
    string_tensor: Any = None,
    num_buckets: int = 1,
    name: str | None = None,
    input: Any = None,  # noqa: A002
) -> Tensor:
    """A bucket for each text, by an older hash."""
    texts = convert(string_tensor if string_tensor is not None else input, string)
    return each("StringToHashBucket", lambda text: old_hash(text) % num_buckets, [texts], name, int64)


def string_split(
    source: Any,
    sep: Any = None,
    skip_empty: bool = True,
    delimiter: Any = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The parts of each of several texts, as rows of a sparse tensor.

    Args:
      delimiter: the characters at which to split; a space when left out, between all bytes when empty.
    """
    if result_type != "SparseTensor":
        raise ValueError("string_split gives SparseTensor; ragged tensors are not supported.")
    between = delimiter if delimiter is not None else sep
    inputs = [convert(source, string), convert(" " if between is None else between, string)]

    if inputs[1].shape.ndims not in (None, 0):
        raise ValueError(f"delimiter must be a scalar, but has the shape {inputs[1].shape}")

    def split(texts: Any, marks: Any) -> tuple[Any, Any, Any]:
        if marks.ndim:
            raise ValueError(f"delimiter must be a scalar, but has the shape {list(marks.shape)}")
        characters = marks.item()
        pattern = b"[" + re.escape(characters) + b"]" if characters else b""
        rows = [re.split(pattern, text) if characters else [bytes([one]) for one in text] for text in texts]
        if skip_empty:
            rows = [[one for one in row if one] for row in rows]
        indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
        values = np.empty(len(indices), object)
        values[:] = [one for row in rows for one in row]
        longest = max((len(row) for row in rows), default=0)
        return np.array(indices, np.int64).reshape(-1, 2), values, np.array([len(rows), longest], np.int64)

    return sparse("StringSplit", split, inputs, string, [None, None], name)
