"""Variables as Arrow columns, as received by Flight clients in any language."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainband.errors import Refused

CHUNK_BYTES = 4 << 20
"""Bytes of a message's body: large enough to make the cost per message negligible, small enough to flow."""

_ARROW_TYPES = {
    name: getattr(pa, name)()
    for name in (
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        # NumPy knows bfloat16 and similar dtypes only once ml_dtypes is imported; JAX imports it, but a ps or a
        # read-only client need not have imported JAX.
        import ml_dtypes

        true: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return true


def _arrow_type(name: str) -> str:
    """Returns the Arrow type for values of a dtype: their own, or raw bits of the same width."""
    if name in _ARROW_TYPES:
        return name
    width = _dtype(name).itemsize
    if width not in (1, 2, 4, 8):
        raise Refused(f"dtype {name} cannot be represented in Arrow.")
    return f"uint{8 * width}"


def tensor_schema(name: str, shape: tuple[int, ...], dtype: str) -> pa.Schema:
    """Returns the schema of a variable: one column `values` of fixed-shape tensors, with a table row for each row.

    A scalar is one row. A dtype that Arrow lacks is sent as raw bits; the metadata name the true one.
    """
    column = pa.fixed_shape_tensor(_ARROW_TYPES[_arrow_type(dtype)], shape[1:])
    metadata = {"trainband.name": name, "trainband.dtype": dtype, "trainband.shape": json.dumps(shape)}
    return pa.schema([pa.field("values", column, nullable=False)], metadata=metadata)


def tensor_batches(schema: pa.Schema, values: NDArray[np.generic]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a variable in batches of about `CHUNK_BYTES`, all views of its memory."""
    column = schema.field("values").type
    rows = values.reshape(1) if values.ndim == 0 else np.ascontiguousarray(values)
    step = max(1, CHUNK_BYTES // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        raw = part.reshape(-1).view(np.uint8)
        items = pa.Array.from_buffers(column.value_type, part.size, [None, pa.py_buffer(raw)])
        # Not by FixedSizeListArray.from_arrays, which cannot tell the number of rows when rows are empty.
        storage = pa.Array.from_buffers(column.storage_type, len(part), [None], children=[items])
        yield pa.RecordBatch.from_arrays([pa.ExtensionArray.from_storage(column, storage)], schema=schema)


def tensor_values(table: pa.Table) -> NDArray[Any]:
    """Returns the values sent by `tensor_batches`, in one dimension and their own dtype."""
    dtype = _dtype(table.schema.metadata[b"trainband.dtype"].decode())
    chunks = [chunk.storage.flatten().to_numpy(zero_copy_only=False) for chunk in table["values"].chunks]
    values: NDArray[Any] = np.concatenate(chunks) if chunks else np.empty(0, dtype)
    return values.view(dtype)
